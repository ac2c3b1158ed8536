"use strict";
// What all charts share. Colours are variables of the style sheet, so that a chart that is drawn follows the
// reader's light or dark mode.

const drawing = (() => {
  const colour = (place) => `var(--c${place % 10})`;
  const decimals = (value) => (value == null ? "—" : value.toFixed(Math.abs(value) < 10 ? 2 : 1));
  const withUnit = (value, unit) => (value == null ? "—" : unit ? `${value.toFixed(1)} ${unit}` : decimals(value));
  const withSpread = (value, spread, unit) =>
    withUnit(value, spread == null ? unit : `± ${spread.toFixed(1)} ${unit}`);
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
  const short = (name, most = 20) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
  const widest = (names, most = 20) => 14 + 6.6 * Math.max(...names.map((name) => short(name, most).length));

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
    Plot.plot({
      width: place.width,
      className: "plot",
      style: { fontSize: "12px" },
      marginTop: 28,
      marginBottom: 38,
      ...options,
    });

  const tip = (data, options) =>
    Plot.tip(data, { fontSize: 12, lineHeight: 1.35, pathFilter: null, stroke: "var(--soft)", ...options });

  return {
    colour,
    decimals,
    withUnit,
    withSpread,
    signed,
    short,
    widest,
    legend,
    plot,
    tip,
    WHEN,
    BEFORE,
    AFTER,
  };
})();
