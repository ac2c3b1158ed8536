"use strict";
// The charts: each kind is a function from its data and its place (width, choice, view) to elements of the
// page. Colours are variables of the style sheet, so that they follow the reader's light or dark mode.

const charts = (() => {
  const MANY = 12; // more names than that are no legend
  const BANDS = 4; // more bands than that hide each other
  const MOST_ROWS = 30; // of a chart that has a row for each class
  const colour = (place) => `var(--c${place % 10})`;
  const decimals = (value) => (value == null ? "—" : value.toFixed(Math.abs(value) < 10 ? 2 : 1));
  const withUnit = (value, unit) => (value == null ? "—" : unit ? `${value.toFixed(1)} ${unit}` : decimals(value));
  const withSpread = (value, spread, unit) => withUnit(value, spread == null ? unit : `± ${spread.toFixed(1)} ${unit}`);
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
  const short = (name, most = 20) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
  const widest = (names, most = 20) => 14 + 6.6 * Math.max(...names.map((name) => short(name, most).length));

  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  /** Colours with their names, above a chart. */
  const legend = (entries) => {
    const item = ({ name, colour: value, dashed }) => {
      const mark = element("i", { className: dashed ? "dashed" : "" });
      mark.style.setProperty("--colour", value);
      return element("li", {}, mark, name);
    };
    return element("ul", { className: "colours" }, ...entries.map(item));
  };

  const WHEN = ["source model", "adapted model"];
  const BEFORE = { name: WHEN[0], colour: "var(--before)" };
  const AFTER = { name: WHEN[1], colour: "var(--after)" };

  const plot = (place, options) =>
    Plot.plot({ width: place.width, className: "plot", style: { fontSize: "12px" }, marginTop: 28, marginBottom: 38, ...options });

  const tip = (data, options) => Plot.tip(data, { fontSize: 12, lineHeight: 1.35, pathFilter: null, stroke: "var(--soft)", ...options });

  /** Ticks at whole rounds only. */
  const roundAxis = (rounds, width) => {
    const step = Math.ceil((rounds.at(-1) - rounds[0] + 1) / Math.max(4, width / 60));
    return { label: "round", tickFormat: "d", ticks: rounds.filter((at) => (at - rounds[0]) % step === 0) };
  };

  // Curves over the rounds

  const lines = (data, place) => {
    const domains = [...new Set(data.series.filter((one) => (one.look ?? "plain") !== "average").map((one) => one.name))];
    const many = domains.length > MANY;
    const paint = (one) => (one.look === "average" ? "var(--ink)" : many ? "var(--before)" : colour(domains.indexOf(one.name)));
    const points = (one) =>
      data.rounds
        .map((x, at) => ({ x, y: one.values[at], spread: one.spread?.[at], name: one.name, stroke: paint(one) }))
        .filter((point) => point.y != null);
    const of = (...looks) => data.series.filter((one) => looks.includes(one.look ?? "plain"));
    const curve = (series, options) =>
      Plot.lineY(series.flatMap(points), { x: "x", y: "y", z: "name", stroke: "stroke", ...options });
    const main = [...of("plain"), ...of("average")].flatMap(points);
    const levels = of("level");
    const marks = [
      Plot.areaY(domains.length > BANDS ? [] : of("plain").flatMap(points).filter((point) => point.spread != null), {
        x: "x", y1: (d) => d.y - d.spread, y2: (d) => d.y + d.spread, z: "name", fill: "stroke", fillOpacity: 0.12,
      }),
      Plot.ruleY(levels, { y: (one) => one.values[0], stroke: paint, strokeDasharray: "2 4", strokeWidth: 1.5 }),
      data.chosen == null ? null : Plot.ruleX([data.chosen], { stroke: "var(--soft)", strokeDasharray: "2 3" }),
      curve(of("dashed"), { strokeDasharray: "5 4", strokeOpacity: 0.8, strokeWidth: 1.2 }),
      curve(of("plain"), { strokeWidth: many ? 1 : 1.8, strokeOpacity: many ? 0.45 : 1 }),
      curve(of("average"), { strokeWidth: 2.6 }),
      data.rounds.length <= 30 && !many ? Plot.dot(main, { x: "x", y: "y", fill: "stroke", r: 2.5 }) : null,
    ];
    const hover = many || domains.length > 8 ? nearest(main, data) : together(data, main);
    const drawn = plot(place, {
      height: place.small ? 170 : 300, marginLeft: 46, marginRight: 16,
      x: roundAxis(data.rounds, place.width), y: { grid: true, label: data.unit || null, nice: true },
      marks: [...marks, ...hover],
    });
    if (many || domains.length > 8) highlight(drawn, [...of("plain"), ...of("average")].map((one) => one.name));
    const named = [...new Map([...of("plain", "level", "average")].map((one) => [one.name, one])).values()];
    const entries = many ? of("average") : named;
    const keys = entries.map((one) => ({ name: one.name, colour: paint(one), dashed: one.look === "level" }));
    if (many) keys.push({ name: `each of ${domains.length}`, colour: "var(--before)" });
    if (of("dashed").length) keys.push({ name: "participants' own", colour: "var(--soft)", dashed: true });
    if (data.chosen != null) keys.push({ name: "label-free choice", colour: "var(--soft)", dashed: true });
    return place.small && keys.length < 3 ? [drawn] : [legend(keys), drawn];
  };

  /** One tip for all curves at the round under the pointer. */
  const together = (data, main) => {
    const rows = data.rounds
      .map((x, at) => ({
        x,
        y: Math.max(...main.filter((point) => point.x === x).map((point) => point.y)),
        text: data.series
          .filter((one) => one.look !== "level" && one.values[at] != null)
          .map((one) => `${one.name}${one.look === "dashed" ? ", own" : ""}: ${withSpread(one.values[at], one.spread?.[at], data.unit)}`),
      }))
      .filter((row) => row.text.length);
    return [
      Plot.ruleX(rows, Plot.pointerX({ x: "x", stroke: "var(--soft)", strokeOpacity: 0.5 })),
      tip(rows, Plot.pointerX({ x: "x", y: "y", title: (row) => [`round ${row.x}`, ...row.text].join("\n") })),
    ];
  };

  /** A tip for the nearest of many curves. */
  const nearest = (main, data) => [
    tip(main, Plot.pointer({ x: "x", y: "y", title: (d) => `${d.name}\nround ${d.x}: ${withSpread(d.y, d.spread, data.unit)}` })),
  ];

  /** Let the curve under the pointer stand out. */
  const highlight = (drawn, names) => {
    const paths = [...drawn.querySelectorAll('g[aria-label="line"] path')].slice(-names.length);
    drawn.addEventListener("input", () => {
      paths.forEach((path, at) => {
        path.classList.toggle("on", names[at] === drawn.value?.name);
        path.classList.toggle("off", drawn.value != null && names[at] !== drawn.value.name);
      });
    });
  };

  const bars = (data, place) => {
    const rows = data.series.flatMap((one) => data.rounds.map((x, at) => ({ x, y: one.values[at] ?? 0, name: one.name })));
    const paint = (name) => (name === data.series[0].name ? "var(--c0)" : "var(--c5)");
    const total = (x) => d3.sum(rows.filter((row) => row.x === x), (row) => row.y);
    const text = (x) => rows.filter((row) => row.x === x).map((row) => `${row.name}: ${row.y.toFixed(1)} ${data.unit}`);
    return [
      legend(data.series.map((one) => ({ name: one.name, colour: paint(one.name) }))),
      plot(place, {
        height: 220, marginLeft: 46,
        x: { ...roundAxis(data.rounds, place.width), type: "band" }, y: { grid: true, label: data.unit },
        marks: [
          Plot.barY(rows, { x: "x", y: "y", fill: (row) => paint(row.name), z: "name" }),
          Plot.ruleY([0], { stroke: "var(--rule)" }),
          tip(data.rounds, Plot.pointerX({ x: (x) => x, y: total, title: (x) => [`round ${x}`, ...text(x)].join("\n") })),
        ],
      }),
    ];
  };

  // Clients

  const heat = (data, place) => {
    const cells = data.rows.flatMap((name, row) =>
      data.columns.map((round, column) => ({ name, row, round, column, value: data.values[row][column] })),
    ).filter((cell) => cell.value != null);
    const most = place.width < 500 ? 12 : 22;
    const every = Math.ceil(data.rows.length / 40);
    const starts = data.columns.map((round, at) => at).filter((at) => at === 0 || data.columns[at - 1] !== data.columns[at]);
    const step = Math.ceil(starts.length / Math.max(4, place.width / 70));
    const style = getComputedStyle(document.documentElement);
    const shade = (name) => style.getPropertyValue(name).trim();
    const diverging = { type: "linear", interpolate: d3.piecewise(d3.interpolateRgb, [shade("--c0"), shade("--head"), shade("--c1")]) };
    const colours = { ...(data.diverging ? diverging : { type: "linear", scheme: "viridis" }), domain: data.limits };
    const drawn = plot(place, {
      height: Math.max(90, Math.min(640, 18 * data.rows.length)) + 45,
      marginLeft: widest(data.rows, most), marginTop: 8,
      x: { label: "round", padding: 0, domain: d3.range(data.columns.length), ticks: starts.filter((at, i) => i % step === 0), tickFormat: (at) => data.columns[at] },
      y: { label: null, padding: 0, domain: d3.range(data.rows.length), ticks: d3.range(0, data.rows.length, every), tickFormat: (row) => short(data.rows[row], most), tickSize: 0 },
      color: colours,
      marks: [
        Plot.cell(cells, { x: "column", y: "row", fill: "value", inset: data.rows.length > 60 ? 0 : 0.5 }),
        tip(cells, Plot.pointer({ x: "column", y: "row", title: (d) => `${d.name}\nround ${d.round}: ${decimals(d.value)}` })),
      ],
    });
    return [Plot.legend({ color: colours, width: Math.min(220, place.width), ticks: 4, className: "plot" }), drawn];
  };

  const strip = (data, place) => {
    const rows = data.names
      .map((name, at) => ({ name, before: data.before[at], after: data.after[at], change: data.after[at] - data.before[at] }))
      .filter((row) => row.before != null && row.after != null)
      .sort((a, b) => a.change - b.change)
      .map((row, rank) => ({ ...row, rank }));
    const paint = (row) => (row.change < -0.05 ? "var(--bad)" : row.change > 0.05 ? "var(--good)" : "var(--before)");
    const text = (row) => `${row.name}\n${decimals(row.before)} → ${decimals(row.after)}, ${signed(row.change)} ${data.unit}`;
    return [
      plot(place, {
        height: 240, marginLeft: 46, marginBottom: 12,
        x: { axis: null, domain: d3.range(rows.length), padding: rows.length > 80 ? 0 : 0.15 }, y: { grid: true, label: data.unit, nice: true },
        marks: [
          Plot.barY(rows, { x: "rank", y: "change", fill: paint }),
          Plot.ruleY([0], { stroke: "var(--ink)" }),
          tip(rows, Plot.pointerX({ x: "rank", y: "change", title: text })),
        ],
      }),
    ];
  };

  // Answers

  /** The rows of a chart that has one for each class: the most telling ones, if there are too many. */
  const telling = (rows, weight) => {
    const kept = new Set([...rows].sort((a, b) => weight(b) - weight(a)).slice(0, MOST_ROWS));
    return rows.filter((row) => kept.has(row));
  };

  const cutNote = (shown, whole) =>
    shown < whole ? [element("p", { className: "soft", textContent: `The ${shown} of ${whole} classes that changed most.` })] : [];

  const rowsHeight = (rows) => 22 * rows.length + 50;

  const classes = (data, place) => {
    const counts = data.choices[place.choice] ?? Object.values(data.choices)[0];
    const whole = data.names.map((name, at) => ({
      at, name, before: counts.before[at], after: counts.after[at], true: counts.true?.[at],
    }));
    const rows = telling(whole, (row) => Math.abs(row.after - row.before));
    const text = (row) => [row.name, `source model: ${row.before}`, `adapted model: ${row.after}`, ...(row.true == null ? [] : [`images of it: ${row.true}`])].join("\n");
    const half = { y: "at", rx: 2 };
    const labelled = rows.some((row) => row.true != null);
    return [
      legend([BEFORE, AFTER, ...(labelled ? [{ name: "images of the class", colour: "var(--ink)" }] : [])]),
      plot(place, {
        height: rowsHeight(rows), marginLeft: widest(data.names), marginRight: 24, marginTop: 8,
        x: { grid: true, label: "images", nice: true, ticks: place.width / 80 },
        y: { label: null, domain: rows.map((row) => row.at), tickFormat: (at) => short(data.names[at]), tickSize: 0, padding: 0.25 },
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
      .map((name, at) => ({ at, name, images: counts.images[at], before: (100 * counts.before[at]) / counts.images[at], after: (100 * counts.after[at]) / counts.images[at] }))
      .filter((row) => row.images > 0)
      .map((row) => ({ ...row, change: row.after - row.before }));
    const rows = telling(whole, (row) => Math.abs(row.change)).sort((a, b) => a.change - b.change);
    const paint = (row) => (row.change < 0 ? "var(--bad)" : row.change > 0 ? "var(--good)" : "var(--before)");
    const text = (row) => `${row.name}, ${row.images} images\n${row.before.toFixed(1)} % → ${row.after.toFixed(1)} %\n${signed(row.change)} points`;
    return [
      legend([BEFORE, AFTER]),
      plot(place, {
        height: rowsHeight(rows), marginLeft: widest(data.names), marginRight: 24, marginTop: 8,
        x: { grid: true, label: "right, %", nice: true, ticks: place.width / 80 },
        y: { label: null, domain: rows.map((row) => row.at), tickFormat: (at) => short(data.names[at]), tickSize: 0 },
        marks: [
          Plot.ruleY(rows, { x1: "before", x2: "after", y: "at", stroke: paint, strokeWidth: 3 }),
          Plot.dot(rows, { x: "before", y: "at", r: 4, fill: "var(--card)", stroke: "var(--before)", strokeWidth: 2.2 }),
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
    const cells = matrix.flatMap((row, y) => {
      const images = d3.sum(row);
      return row.map((count, x) => ({ x, y, count, images, share: images ? count / images : 0 }));
    }).filter((cell) => cell.count > 0);
    const most = place.width < 500 ? 10 : 16;
    const left = widest(data.names, most);
    const side = Math.min(place.width, 620) - left - 8;
    const wide = side / size;
    const paint = (cell) => (cell.x === cell.y ? "var(--after)" : "var(--bad)");
    // Mistakes are rarer than right answers: the root lets them be seen.
    const strength = (cell) => Math.max(0.08, Math.sqrt(cell.share));
    const text = (cell) => `${data.names[cell.y]} answered as ${data.names[cell.x]}\n${cell.count} of ${cell.images} images, ${(100 * cell.share).toFixed(1)} %`;
    const flat = data.names.every((name) => 6.6 * short(name, most).length < wide);
    const axis = { domain: d3.range(size), tickFormat: (at) => short(data.names[at], most), tickSize: 0, padding: 0.06 };
    return [
      plot({ ...place, width: side + left + 8 }, {
        height: side + (flat ? 40 : left) + 28, marginLeft: left, marginRight: 8, marginBottom: flat ? 40 : left,
        x: { ...axis, label: "answer", tickRotate: flat ? 0 : -90, labelAnchor: "right" }, y: { ...axis, label: "true class", labelAnchor: "top" },
        marks: [
          Plot.cell(cells, { x: "x", y: "y", fill: paint, fillOpacity: strength, rx: 2 }),
          7 * String(d3.max(cells, (cell) => cell.count)).length < wide - 4
            ? Plot.text(cells, { x: "x", y: "y", text: (d) => String(d.count), fill: (d) => (strength(d) > 0.6 ? "var(--card)" : "var(--ink)"), fontSize: 11 })
            : null,
          tip(cells, Plot.pointer({ x: "x", y: "y", title: text })),
        ],
      }),
    ];
  };

  const calibrations = (data, place) => {
    const { before, after } = data.choices[place.choice] ?? Object.values(data.choices)[0];
    const points = (curve, key) => curve.confidence.map((x, at) => ({ x: 100 * x, y: 100 * curve.right[at], images: curve.images[at], ...key }));
    const rows = [...points(before, BEFORE), ...points(after, AFTER)];
    const side = Math.min(place.width, 430);
    const error = (curve) => (curve.error == null ? "" : `, error ${(100 * curve.error).toFixed(1)} %`);
    const text = (d) => `${d.name}\n${d.images} images\nsure: ${d.x.toFixed(0)} %, right: ${d.y.toFixed(0)} %`;
    return [
      legend([{ ...BEFORE, name: BEFORE.name + error(before) }, { ...AFTER, name: AFTER.name + error(after) }]),
      plot({ ...place, width: side }, {
        height: side * 0.86, marginLeft: 46, marginRight: 16,
        x: { domain: [0, 100], label: "sure, %", grid: true, ticks: 5 }, y: { domain: [0, 100], label: "right, %", grid: true, ticks: 5 },
        r: { range: [2.5, 9] },
        marks: [
          Plot.line([[0, 0], [100, 100]], { stroke: "var(--soft)", strokeDasharray: "2 4" }),
          Plot.line(rows, { x: "x", y: "y", z: "name", stroke: "colour", strokeWidth: 1.8 }),
          Plot.dot(rows, { x: "x", y: "y", r: "images", fill: "colour", fillOpacity: 0.85 }),
          tip(rows, Plot.pointer({ x: "x", y: "y", title: text })),
        ],
      }),
    ];
  };

  const scatter = (data, place) => {
    const by = { domain: [data.domain, data.domains], answer: [data.answer, data.classes], label: [data.label, data.classes] };
    const [places, names] = by[place.view];
    const wide = place.width >= 620;
    // Beyond ten, neighbouring places of a circle of colours tell more than ten colours again.
    const paint = (at) => (at == null ? "var(--before)" : names.length <= 10 ? colour(at) : d3.interpolateRainbow(at / names.length));
    const text = (at) => [
      data.domains[data.domain[at]],
      `answer: ${data.classes[data.answer[at]]}`,
      ...(data.label?.[at] == null ? [] : [`true class: ${data.classes[data.label[at]]}`]),
    ].join("\n");
    const dots = (points, when) => points.map(([x, y], at) => ({ x, y, when, at, fill: paint(places[at]), text: text(at) }));
    const rows = [...dots(data.before, WHEN[0]), ...dots(data.after, WHEN[1])];
    const facet = (when) => (wide ? { fx: when } : { fy: when });
    const side = wide ? place.width / 2 : place.width;
    const present = [...new Set(places)].filter((at) => at != null).sort((a, b) => a - b);
    const drawn = plot(place, {
      height: wide ? Math.min(520, side) : 2 * side, margin: 1, marginTop: 1, marginBottom: 1,
      x: { axis: null, insetLeft: 8, insetRight: 8 }, y: { axis: null, insetBottom: 8, insetTop: 30 },
      ...facet({ axis: null, domain: WHEN, padding: 0.04 }),
      marks: [
        Plot.frame({ stroke: "var(--rule)", rx: 8 }),
        Plot.text(WHEN, { ...facet((when) => when), text: (when) => when, frameAnchor: "top-left", dx: 10, dy: 9, fill: "var(--soft)" }),
        Plot.dot(rows, { x: "x", y: "y", ...facet("when"), r: 2.6, fill: "fill", fillOpacity: 0.75 }),
        tip(rows, Plot.pointer({ x: "x", y: "y", ...facet("when"), title: "text" })),
      ],
    });
    const keys = present.map((at) => ({ name: names[at], colour: paint(at) }));
    return names.length > 30 ? [drawn] : [legend(keys), drawn];
  };

  // Methods

  const dots = (data, place) => {
    const rows = data.dots.map((dot, at) => ({ ...dot, at }));
    const ticks = rows.flatMap((row) => (row.values.length > 1 ? row.values.map((value) => ({ value, at: row.at })) : []));
    const most = place.width < 500 ? 16 : 28;
    const names = rows.map((row) => row.name);
    const text = (row) =>
      [row.name, `${decimals(row.mean)}${row.deviation == null ? "" : ` ± ${decimals(row.deviation)}`} ${data.unit}`, `source model: ${decimals(row.before)} ${data.unit}`].join("\n");
    return [
      plot(place, {
        height: 30 * rows.length + 50, marginLeft: widest(names, most), marginRight: 24, marginTop: 8,
        x: { grid: true, label: `accuracy, ${data.unit}`, nice: true, ticks: place.width / 80 },
        y: { label: null, domain: rows.map((row) => row.at), tickFormat: (at) => short(names[at], most), tickSize: 0 },
        marks: [
          Plot.ruleY(rows.filter((row) => row.deviation != null), { x1: (d) => d.mean - d.deviation, x2: (d) => d.mean + d.deviation, y: "at", stroke: "var(--after)", strokeWidth: 8, strokeOpacity: 0.22 }),
          Plot.tickX(ticks, { x: "value", y: "at", stroke: "var(--after)", strokeOpacity: 0.6, inset: 8 }),
          Plot.dot(rows, { x: "before", y: "at", r: 4, stroke: "var(--before)", strokeWidth: 2, fill: "var(--card)" }),
          Plot.dot(rows, { x: "mean", y: "at", r: 5.5, fill: "var(--after)" }),
          tip(rows, Plot.pointerY({ x: "mean", y: "at", title: text })),
        ],
      }),
    ];
  };

  const KINDS = { lines, bars, heat, strip, classes, recalls, confusions, calibrations, scatter, dots };

  // Where they stand

  let data = {};
  let choice = null;
  const all = (root) => [...root.querySelectorAll(".chart")];

  /** One picture with one name: Plot's names of its parts mean nothing to a listener. */
  const describe = (drawing, title) => {
    drawing.querySelectorAll("[aria-label], [aria-description]").forEach((part) => {
      part.removeAttribute("aria-label");
      part.removeAttribute("aria-description");
    });
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", title);
  };

  const draw = (box) => {
    const width = Math.floor(box.clientWidth);
    const one = data[box.dataset.chart];
    if (!width || !one) return;
    const view = box.closest("figure").querySelector(".views input:checked")?.value;
    const place = { width, choice, view, small: box.closest(".small") != null };
    box.replaceChildren(...KINDS[one.kind](one, place));
    box.dataset.width = width;
    for (const drawing of box.querySelectorAll(":scope > svg")) describe(drawing, box.dataset.title);
  };

  const drawAll = () => all(document).forEach(draw);

  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (Math.abs(target.clientWidth - (target.dataset.width ?? 0)) > 1) draw(target);
    }
    performance.mark("drawn");
  });

  const start = (root) => {
    data = JSON.parse(document.getElementById("charts")?.textContent ?? "{}");
    const select = root.querySelector(".choice select");
    choice = select?.value ?? null;
    select?.closest(".choice").removeAttribute("hidden");
    select?.addEventListener("change", () => {
      choice = select.value;
      all(select.closest("section")).forEach(draw);
    });
    root.querySelectorAll(".views").forEach((views) => {
      views.addEventListener("change", () => draw(views.closest("figure").querySelector(".chart")));
    });
    all(root).forEach((box) => resized.observe(box)); // draws what is to be seen, and what a fold opens, as it opens
  };

  // Some colours are mixed by the script, and so do not follow the style sheet.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  return { start, drawAll };
})();
