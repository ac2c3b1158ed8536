"use strict";
// Charts of rounds, clients and methods: each is a function from its data and its place (width, small) to
// elements of the page.

const roundCharts = (() => {
  const { colour, decimals, withUnit, withSpread, signed, short, widest, legend, plot, tip } = drawing;
  const MANY = 12; // more names than that are no legend
  const BANDS = 4; // more bands than that hide each other

  /** Ticks at whole rounds only. */
  const roundAxis = (rounds, width) => {
    const step = Math.ceil((rounds.at(-1) - rounds[0] + 1) / Math.max(4, width / 60));
    return { label: "round", tickFormat: "d", ticks: rounds.filter((at) => (at - rounds[0]) % step === 0) };
  };

  /** The curves with their colours: a few have one each, many are one shape. */
  const coloured = (data) => {
    const names = [...new Set(data.series.filter((one) => one.look !== "average").map((one) => one.name))];
    const many = names.length > MANY;
    const paint = (one) => (many ? "var(--before)" : colour(names.indexOf(one.name)));
    const curves = data.series.map((one) => ({
      look: "plain",
      spread: [],
      ...one,
      stroke: one.look === "average" ? "var(--ink)" : paint(one),
    }));
    return { many, names, of: (...looks) => curves.filter((one) => looks.includes(one.look)) };
  };

  /** The known points of some curves. */
  const points = (data, curves) =>
    curves.flatMap((one) =>
      data.rounds
        .map((x, at) => ({ x, y: one.values[at], spread: one.spread[at], name: one.name, stroke: one.stroke }))
        .filter((point) => point.y != null),
    );

  const curveMarks = (data, { many, names, of }) => {
    const curve = (curves, options) =>
      Plot.lineY(points(data, curves), { x: "x", y: "y", z: "name", stroke: "stroke", ...options });
    const banded = names.length > BANDS ? [] : points(data, of("plain")).filter((point) => point.spread != null);
    const band = { y1: (d) => d.y - d.spread, y2: (d) => d.y + d.spread, fill: "stroke", fillOpacity: 0.12 };
    const level = { y: (one) => one.values[0], stroke: "stroke", strokeDasharray: "2 4", strokeWidth: 1.5 };
    return [
      Plot.areaY(banded, { x: "x", z: "name", ...band }),
      Plot.ruleY(of("level"), level),
      data.chosen == null ? null : Plot.ruleX([data.chosen], { stroke: "var(--soft)", strokeDasharray: "2 3" }),
      curve(of("dashed"), { strokeDasharray: "5 4", strokeOpacity: 0.8, strokeWidth: 1.2 }),
      curve(of("plain"), { strokeWidth: many ? 1 : 1.8, strokeOpacity: many ? 0.45 : 1 }),
      curve(of("average"), { strokeWidth: 2.6 }),
      data.rounds.length > 30 || many
        ? null
        : Plot.dot(points(data, of("plain", "average")), { x: "x", y: "y", fill: "stroke", r: 2.5 }),
    ];
  };

  const curveKeys = (data, { many, names, of }) => [
    ...of(...(many ? ["average"] : ["plain", "level", "average"])).map((one) => ({
      name: one.name,
      colour: one.stroke,
      dashed: one.look === "level",
    })),
    ...(many ? [{ name: `each of ${names.length}`, colour: "var(--before)" }] : []),
    ...(of("dashed").length ? [{ name: "participants' own", colour: "var(--soft)", dashed: true }] : []),
    ...(data.chosen == null ? [] : [{ name: "label-free choice", colour: "var(--soft)", dashed: true }]),
  ];

  const lines = (data, place) => {
    const curves = coloured(data);
    const main = curves.of("plain", "average");
    const crowded = curves.names.length > 8;
    const drawn = plot(place, {
      height: place.small ? 170 : 300,
      marginLeft: 46,
      marginRight: 16,
      x: roundAxis(data.rounds, place.width),
      y: { grid: true, label: data.unit || null, nice: true },
      marks: [...curveMarks(data, curves), ...(crowded ? nearest : together)(data, points(data, main))],
    });
    if (crowded) highlight(drawn, main.map((one) => one.name)); // prettier-ignore
    const keys = curveKeys(data, curves);
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
          .map(
            (one) =>
              `${one.name}${one.look === "dashed" ? ", own" : ""}: ${withSpread(one.values[at], one.spread?.[at], data.unit)}`,
          ),
      }))
      .filter((row) => row.text.length);
    return [
      Plot.ruleX(rows, Plot.pointerX({ x: "x", stroke: "var(--soft)", strokeOpacity: 0.5 })),
      tip(rows, Plot.pointerX({ x: "x", y: "y", title: (row) => [`round ${row.x}`, ...row.text].join("\n") })),
    ];
  };

  /** A tip for the nearest of many curves. */
  const nearest = (data, main) => [
    tip(
      main,
      Plot.pointer({
        x: "x",
        y: "y",
        title: (d) => `${d.name}\nround ${d.x}: ${withSpread(d.y, d.spread, data.unit)}`,
      }),
    ),
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
    const rows = data.series.flatMap((one) =>
      data.rounds.map((x, at) => ({ x, y: one.values[at] ?? 0, name: one.name })),
    );
    const paint = (name) => (name === data.series[0].name ? "var(--c0)" : "var(--c5)");
    const total = (x) =>
      d3.sum(
        rows.filter((row) => row.x === x),
        (row) => row.y,
      );
    const text = (x) =>
      rows.filter((row) => row.x === x).map((row) => `${row.name}: ${row.y.toFixed(1)} ${data.unit}`);
    return [
      legend(data.series.map((one) => ({ name: one.name, colour: paint(one.name) }))),
      plot(place, {
        height: 220,
        marginLeft: 46,
        x: { ...roundAxis(data.rounds, place.width), type: "band" },
        y: { grid: true, label: data.unit },
        marks: [
          Plot.barY(rows, { x: "x", y: "y", fill: (row) => paint(row.name), z: "name" }),
          Plot.ruleY([0], { stroke: "var(--rule)" }),
          tip(
            data.rounds,
            Plot.pointerX({ x: (x) => x, y: total, title: (x) => [`round ${x}`, ...text(x)].join("\n") }),
          ),
        ],
      }),
    ];
  };

  const heat = (data, place) => {
    const cells = data.rows
      .flatMap((name, row) =>
        data.columns.map((round, column) => ({ name, row, round, column, value: data.values[row][column] })),
      )
      .filter((cell) => cell.value != null);
    const most = place.width < 500 ? 12 : 22;
    const every = Math.ceil(data.rows.length / 40);
    const starts = data.columns
      .map((round, at) => at)
      .filter((at) => at === 0 || data.columns[at - 1] !== data.columns[at]);
    const step = Math.ceil(starts.length / Math.max(4, place.width / 70));
    // Of two colours the strength says how far from zero: mixed with the card, it suits light, dark and paper.
    const two = {
      fill: (cell) => (cell.value < 0 ? "var(--c0)" : "var(--c1)"),
      fillOpacity: (cell) => 0.07 + (0.93 * Math.abs(cell.value)) / data.limits[1],
    };
    const many = { type: "linear", scheme: "viridis", domain: data.limits };
    const key = data.diverging
      ? legend([
          { name: `to ${decimals(data.limits[0])}`, colour: "var(--c0)" },
          { name: `to ${decimals(data.limits[1])}`, colour: "var(--c1)" },
        ])
      : Plot.legend({ color: many, width: Math.min(220, place.width), ticks: 4, className: "plot" });
    const drawn = plot(place, {
      height: Math.max(90, Math.min(640, 18 * data.rows.length)) + 45,
      marginLeft: widest(data.rows, most),
      marginTop: 8,
      x: {
        label: "round",
        padding: 0,
        domain: d3.range(data.columns.length),
        ticks: starts.filter((at, i) => i % step === 0),
        tickFormat: (at) => data.columns[at],
      },
      y: {
        label: null,
        padding: 0,
        domain: d3.range(data.rows.length),
        ticks: d3.range(0, data.rows.length, every),
        tickFormat: (row) => short(data.rows[row], most),
        tickSize: 0,
      },
      ...(data.diverging ? {} : { color: many }),
      marks: [
        Plot.cell(cells, {
          x: "column",
          y: "row",
          ...(data.diverging ? two : { fill: "value" }),
          inset: data.rows.length > 60 ? 0 : 0.5,
        }),
        tip(
          cells,
          Plot.pointer({ x: "column", y: "row", title: (d) => `${d.name}\nround ${d.round}: ${decimals(d.value)}` }),
        ),
      ],
    });
    return [key, drawn];
  };

  const strip = (data, place) => {
    const rows = data.names
      .map((name, at) => ({
        name,
        before: data.before[at],
        after: data.after[at],
        change: data.after[at] - data.before[at],
      }))
      .filter((row) => row.before != null && row.after != null)
      .sort((a, b) => a.change - b.change)
      .map((row, rank) => ({ ...row, rank }));
    const paint = (row) => (row.change < -0.05 ? "var(--bad)" : row.change > 0.05 ? "var(--good)" : "var(--before)");
    const text = (row) =>
      `${row.name}\n${decimals(row.before)} → ${decimals(row.after)}, ${signed(row.change)} ${data.unit}`;
    return [
      plot(place, {
        height: 240,
        marginLeft: 46,
        marginBottom: 12,
        x: { axis: null, domain: d3.range(rows.length), padding: rows.length > 80 ? 0 : 0.15 },
        y: { grid: true, label: data.unit, nice: true },
        marks: [
          Plot.barY(rows, { x: "rank", y: "change", fill: paint }),
          Plot.ruleY([0], { stroke: "var(--ink)" }),
          tip(rows, Plot.pointerX({ x: "rank", y: "change", title: text })),
        ],
      }),
    ];
  };

  /** Quantiles over the rounds: 5, 25, 50, 75 and 95 %. */
  const bands = (data, place) => {
    const rows = data.rounds
      .map((x, at) => ({ x, at: data.values.map((one) => one[at]) }))
      .filter((row) => row.at[2] != null);
    const area = (low, high, fillOpacity) =>
      Plot.areaY(rows, { x: "x", y1: (d) => d.at[low], y2: (d) => d.at[high], fill: "var(--after)", fillOpacity });
    const range = (row, low, high) => `${withUnit(row.at[low], data.unit)} to ${withUnit(row.at[high], data.unit)}`;
    const text = (row) =>
      [
        `round ${row.x}`,
        `median: ${withUnit(row.at[2], data.unit)}`,
        `half: ${range(row, 1, 3)}`,
        `nine of ten: ${range(row, 0, 4)}`,
      ].join("\n");
    return [
      legend([
        { name: "median", colour: "var(--after)" },
        { name: "half", colour: "color-mix(in srgb, var(--after) 50%, var(--card))" },
        { name: "nine of ten", colour: "color-mix(in srgb, var(--after) 18%, var(--card))" },
        ...(data.chosen == null ? [] : [{ name: "label-free choice", colour: "var(--soft)", dashed: true }]),
      ]),
      plot(place, {
        height: 300,
        marginLeft: 46,
        marginRight: 16,
        x: roundAxis(data.rounds, place.width),
        y: { grid: true, label: data.unit || null, nice: true },
        marks: [
          area(0, 4, 0.18),
          area(1, 3, 0.32),
          data.chosen == null ? null : Plot.ruleX([data.chosen], { stroke: "var(--soft)", strokeDasharray: "2 3" }),
          Plot.lineY(rows, { x: "x", y: (d) => d.at[2], stroke: "var(--after)", strokeWidth: 2.6 }),
          Plot.ruleX(rows, Plot.pointerX({ x: "x", stroke: "var(--soft)", strokeOpacity: 0.5 })),
          tip(rows, Plot.pointerX({ x: "x", y: (d) => d.at[2], title: text })),
        ],
      }),
    ];
  };

  /** How many changed by how much; a bin around zero is neither. */
  const histogram = (data, place) => {
    const rows = data.counts.map((y, at) => ({ x1: data.edges[at], x2: data.edges[at + 1], y }));
    const paint = (row) => (row.x2 < 0 ? "var(--bad)" : row.x1 > 0 ? "var(--good)" : "var(--before)");
    const text = (row) => `${row.y} from ${decimals(row.x1)} to ${decimals(row.x2)} ${data.unit}`;
    return [
      plot(place, {
        height: 240,
        marginLeft: 46,
        x: { label: `change, ${data.unit}`, ticks: place.width / 80 },
        y: { grid: true, label: "clients", nice: true },
        marks: [
          Plot.rectY(rows, { x1: "x1", x2: "x2", y: "y", fill: paint, inset: 0.5 }),
          Plot.ruleY([0], { stroke: "var(--ink)" }),
          tip(rows, Plot.pointerX({ x: (d) => (d.x1 + d.x2) / 2, y: "y", title: text })),
        ],
      }),
    ];
  };

  const dots = (data, place) => {
    const rows = data.dots.map((dot, at) => ({ ...dot, at }));
    const ticks = rows.flatMap((row) =>
      row.values.length > 1 ? row.values.map((value) => ({ value, at: row.at })) : [],
    );
    const most = place.width < 500 ? 16 : 28;
    const names = rows.map((row) => row.name);
    const text = (row) =>
      [
        row.name,
        `${decimals(row.mean)}${row.deviation == null ? "" : ` ± ${decimals(row.deviation)}`} ${data.unit}`,
        `source model: ${decimals(row.before)} ${data.unit}`,
      ].join("\n");
    return [
      plot(place, {
        height: 30 * rows.length + 50,
        marginLeft: widest(names, most),
        marginRight: 24,
        marginTop: 8,
        x: { grid: true, label: `accuracy, ${data.unit}`, nice: true, ticks: place.width / 80 },
        y: {
          label: null,
          domain: rows.map((row) => row.at),
          tickFormat: (at) => short(names[at], most),
          tickSize: 0,
        },
        marks: [
          Plot.ruleY(
            rows.filter((row) => row.deviation != null),
            {
              x1: (d) => d.mean - d.deviation,
              x2: (d) => d.mean + d.deviation,
              y: "at",
              stroke: "var(--after)",
              strokeWidth: 8,
              strokeOpacity: 0.22,
            },
          ),
          Plot.tickX(ticks, { x: "value", y: "at", stroke: "var(--after)", strokeOpacity: 0.6, inset: 8 }),
          Plot.dot(rows, {
            x: "before",
            y: "at",
            r: 4,
            stroke: "var(--before)",
            strokeWidth: 2,
            fill: "var(--card)",
          }),
          Plot.dot(rows, { x: "mean", y: "at", r: 5.5, fill: "var(--after)" }),
          tip(rows, Plot.pointerY({ x: "mean", y: "at", title: text })),
        ],
      }),
    ];
  };

  return { lines, bars, heat, strip, bands, histogram, dots };
})();
