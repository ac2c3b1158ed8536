"use strict";
// Charts of what the models answer: each is a function from its data and its place (width, the domain that is
// chosen, the view) to elements of the page.

const answerCharts = (() => {
  const { colour, signed, short, widest, legend, plot, tip, WHEN, BEFORE, AFTER } = drawing;
  const MOST_ROWS = 30; // of a chart that has a row for each class

  /** The rows of a chart that has one for each class: the most telling ones, if there are too many. */
  const telling = (rows, weight) => {
    const kept = new Set([...rows].sort((a, b) => weight(b) - weight(a)).slice(0, MOST_ROWS));
    return rows.filter((row) => kept.has(row));
  };

  const cutNote = (shown, whole) =>
    shown < whole
      ? [element("p", { className: "soft", textContent: `The ${shown} of ${whole} classes that changed most.` })]
      : [];

  const rowsHeight = (rows) => 22 * rows.length + 50;

  const classes = (data, place) => {
    const counts = data.choices[place.choice] ?? Object.values(data.choices)[0];
    const whole = data.names.map((name, at) => ({
      at,
      name,
      before: counts.before[at],
      after: counts.after[at],
      true: counts.true?.[at],
    }));
    const rows = telling(whole, (row) => Math.abs(row.after - row.before));
    const text = (row) =>
      [
        row.name,
        `source model: ${row.before}`,
        `adapted model: ${row.after}`,
        ...(row.true == null ? [] : [`images of it: ${row.true}`]),
      ].join("\n");
    const half = { y: "at", rx: 2 };
    const labelled = rows.some((row) => row.true != null);
    return [
      legend([BEFORE, AFTER, ...(labelled ? [{ name: "images of the class", colour: "var(--ink)" }] : [])]),
      plot(place, {
        height: rowsHeight(rows),
        marginLeft: widest(data.names),
        marginRight: 24,
        marginTop: 8,
        x: { grid: true, label: "images", nice: true, ticks: place.width / 80 },
        y: {
          label: null,
          domain: rows.map((row) => row.at),
          tickFormat: (at) => short(data.names[at]),
          tickSize: 0,
          padding: 0.25,
        },
        marks: [
          Plot.barX(rows, { ...half, x: "before", fill: "var(--before)", insetBottom: 9 }),
          Plot.barX(rows, { ...half, x: "after", fill: "var(--after)", insetTop: 8 }),
          labelled ? Plot.tickX(rows, { x: "true", y: "at", stroke: "var(--ink)", strokeWidth: 2.5 }) : null,
          tip(rows, Plot.pointerY({ x: (row) => Math.max(row.before, row.after), y: "at", title: text })),
        ],
      }),
      ...cutNote(rows.length, whole.length),
    ];
  };

  const recalls = (data, place) => {
    const counts = data.choices[place.choice] ?? Object.values(data.choices)[0];
    const whole = data.names
      .map((name, at) => ({
        at,
        name,
        images: counts.images[at],
        before: (100 * counts.before[at]) / counts.images[at],
        after: (100 * counts.after[at]) / counts.images[at],
      }))
      .filter((row) => row.images > 0)
      .map((row) => ({ ...row, change: row.after - row.before }));
    const rows = telling(whole, (row) => Math.abs(row.change)).sort((a, b) => a.change - b.change);
    const paint = (row) => (row.change < 0 ? "var(--bad)" : row.change > 0 ? "var(--good)" : "var(--before)");
    const text = (row) =>
      `${row.name}, ${row.images} images\n${row.before.toFixed(1)} % → ${row.after.toFixed(1)} %\n${signed(row.change)} points`;
    return [
      legend([BEFORE, AFTER]),
      plot(place, {
        height: rowsHeight(rows),
        marginLeft: widest(data.names),
        marginRight: 24,
        marginTop: 8,
        x: { grid: true, label: "right, %", nice: true, ticks: place.width / 80 },
        y: { label: null, domain: rows.map((row) => row.at), tickFormat: (at) => short(data.names[at]), tickSize: 0 },
        marks: [
          Plot.ruleY(rows, { x1: "before", x2: "after", y: "at", stroke: paint, strokeWidth: 3 }),
          Plot.dot(rows, {
            x: "before",
            y: "at",
            r: 4,
            fill: "var(--card)",
            stroke: "var(--before)",
            strokeWidth: 2.2,
          }),
          Plot.dot(rows, { x: "after", y: "at", r: 5, fill: "var(--after)" }),
          tip(rows, Plot.pointerY({ x: "after", y: "at", title: text })),
        ],
      }),
      ...cutNote(rows.length, whole.length),
    ];
  };

  const confusions = (data, place) => {
    const matrix = (data.choices[place.choice] ?? Object.values(data.choices)[0])[place.view];
    const size = data.names.length;
    const cells = matrix
      .flatMap((row, y) => {
        const images = d3.sum(row);
        return row.map((count, x) => ({ x, y, count, images, share: images ? count / images : 0 }));
      })
      .filter((cell) => cell.count > 0);
    const most = place.width < 500 ? 10 : 16;
    const left = widest(data.names, most);
    const side = Math.min(place.width, 620) - left - 8;
    const wide = side / size;
    const paint = (cell) => (cell.x === cell.y ? "var(--after)" : "var(--bad)");
    // Mistakes are rarer than right answers: the root lets them be seen.
    const strength = (cell) => Math.max(0.08, Math.sqrt(cell.share));
    const text = (cell) =>
      `${data.names[cell.y]} answered as ${data.names[cell.x]}\n${cell.count} of ${cell.images} images, ${(100 * cell.share).toFixed(1)} %`;
    const flat = data.names.every((name) => 6.6 * short(name, most).length < wide);
    const axis = {
      domain: d3.range(size),
      tickFormat: (at) => short(data.names[at], most),
      tickSize: 0,
      padding: 0.06,
    };
    return [
      plot(
        { ...place, width: side + left + 8 },
        {
          height: side + (flat ? 40 : left) + 28,
          marginLeft: left,
          marginRight: 8,
          marginBottom: flat ? 40 : left,
          x: { ...axis, label: "answer", tickRotate: flat ? 0 : -90, labelAnchor: "right" },
          y: { ...axis, label: "true class", labelAnchor: "top" },
          marks: [
            Plot.cell(cells, { x: "x", y: "y", fill: paint, fillOpacity: strength, rx: 2 }),
            7 * String(d3.max(cells, (cell) => cell.count)).length < wide - 4
              ? Plot.text(cells, {
                  x: "x",
                  y: "y",
                  text: (d) => String(d.count),
                  fill: (d) => (strength(d) > 0.6 ? "var(--card)" : "var(--ink)"),
                  fontSize: 11,
                })
              : null,
            tip(cells, Plot.pointer({ x: "x", y: "y", title: text })),
          ],
        },
      ),
    ];
  };

  const calibrations = (data, place) => {
    const { before, after } = data.choices[place.choice] ?? Object.values(data.choices)[0];
    const points = (curve, key) =>
      curve.confidence.map((x, at) => ({ x: 100 * x, y: 100 * curve.right[at], images: curve.images[at], ...key }));
    const rows = [...points(before, BEFORE), ...points(after, AFTER)];
    const side = Math.min(place.width, 430);
    const error = (curve) => (curve.error == null ? "" : `, error ${(100 * curve.error).toFixed(1)} %`);
    const text = (d) => `${d.name}\n${d.images} images\nsure: ${d.x.toFixed(0)} %, right: ${d.y.toFixed(0)} %`;
    return [
      legend([
        { ...BEFORE, name: BEFORE.name + error(before) },
        { ...AFTER, name: AFTER.name + error(after) },
      ]),
      plot(
        { ...place, width: side },
        {
          height: side * 0.86,
          marginLeft: 46,
          marginRight: 16,
          x: { domain: [0, 100], label: "sure, %", grid: true, ticks: 5 },
          y: { domain: [0, 100], label: "right, %", grid: true, ticks: 5 },
          r: { range: [2.5, 9] },
          marks: [
            Plot.line(
              [
                [0, 0],
                [100, 100],
              ],
              { stroke: "var(--soft)", strokeDasharray: "2 4" },
            ),
            Plot.line(rows, { x: "x", y: "y", z: "name", stroke: "colour", strokeWidth: 1.8 }),
            Plot.dot(rows, { x: "x", y: "y", r: "images", fill: "colour", fillOpacity: 0.85 }),
            tip(rows, Plot.pointer({ x: "x", y: "y", title: text })),
          ],
        },
      ),
    ];
  };

  const scatter = (data, place) => {
    const by = {
      domain: [data.domain, data.domains],
      answer: [data.answer, data.classes],
      label: [data.label, data.classes],
    };
    const [places, names] = by[place.view];
    const wide = place.width >= 620;
    // Beyond ten, neighbouring places of a circle of colours tell more than ten colours again.
    const paint = (at) =>
      at == null ? "var(--before)" : names.length <= 10 ? colour(at) : d3.interpolateRainbow(at / names.length);
    const text = (at) =>
      [
        data.domains[data.domain[at]],
        `answer: ${data.classes[data.answer[at]]}`,
        ...(data.label?.[at] == null ? [] : [`true class: ${data.classes[data.label[at]]}`]),
      ].join("\n");
    const dots = (points, when) =>
      points.map(([x, y], at) => ({ x, y, when, at, fill: paint(places[at]), text: text(at) }));
    const rows = [...dots(data.before, WHEN[0]), ...dots(data.after, WHEN[1])];
    const facet = (when) => (wide ? { fx: when } : { fy: when });
    const side = wide ? place.width / 2 : place.width;
    const present = [...new Set(places)].filter((at) => at != null).sort((a, b) => a - b);
    const drawn = plot(place, {
      height: wide ? Math.min(520, side) : 2 * side,
      margin: 1,
      marginTop: 1,
      marginBottom: 1,
      x: { axis: null, insetLeft: 8, insetRight: 8 },
      y: { axis: null, insetBottom: 8, insetTop: 30 },
      ...facet({ axis: null, domain: WHEN, padding: 0.04 }),
      marks: [
        Plot.frame({ stroke: "var(--rule)", rx: 8 }),
        Plot.text(WHEN, {
          ...facet((when) => when),
          text: (when) => when,
          frameAnchor: "top-left",
          dx: 10,
          dy: 9,
          fill: "var(--soft)",
        }),
        Plot.dot(rows, { x: "x", y: "y", ...facet("when"), r: 2.6, fill: "fill", fillOpacity: 0.75 }),
        tip(rows, Plot.pointer({ x: "x", y: "y", ...facet("when"), title: "text" })),
      ],
    });
    const keys = present.map((at) => ({ name: names[at], colour: paint(at) }));
    return names.length > 30 ? [drawn] : [legend(keys), drawn];
  };

  return { classes, recalls, confusions, calibrations, scatter };
})();
