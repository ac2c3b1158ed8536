"use strict";
// What a reader can do with the page beside reading: copy a command, sort and filter tables, choose what a
// chart shows, print. Everything is in the page already; without this script it is read as it stands.

const fedscal = (() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  /** Tell those who do not see the change. */
  const say = (text) => {
    document.getElementById("said").textContent = text;
  };

  // Copy

  const copyText = async (text, source) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Over plain http a browser has no clipboard of that kind: the old way, by a selection.
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      if (!document.execCommand("copy")) throw new Error("the browser does not copy");
    }
  };

  const setUpCopy = (button) => {
    const code = button.parentElement.querySelector("code");
    button.hidden = false;
    button.setAttribute("aria-label", `Copy: ${code.textContent}`);
    button.addEventListener("click", async () => {
      const done = await copyText(code.textContent, code).then(
        () => true,
        () => false,
      );
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      button.classList.toggle("done", done);
      say(done ? "The command is in the clipboard." : "The command is selected.");
      setTimeout(() => {
        button.textContent = "Copy";
        button.classList.remove("done");
      }, 2000);
    });
  };

  // Tables

  const words = new Intl.Collator("en", { numeric: true });

  /** A cell's number, if it begins with one: "+1.0 better", "85.0 ± 1.4", "−3 %". */
  const numberOf = (text) => {
    const found = /^[+−-]?[\d,]*\.?\d+(e[+-]?\d+)?/.exec(text);
    return found ? Number(found[0].replace("−", "-").replaceAll(",", "")) : NaN;
  };

  const compareCells = (a, b) => {
    const [x, y] = [numberOf(a), numberOf(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? words.compare(a, b) : x - y;
  };

  const sortTable = (table, column, direction) => {
    const text = (row) => row.cells[column].textContent.trim();
    const known = (row) => !["", "—", "–"].includes(text(row).split(" ")[0]);
    const rows = all("tbody > tr", table);
    const last = rows.filter((row) => row.classList.contains("total"));
    const sorted = rows
      .filter((row) => !last.includes(row))
      .sort((a, b) => known(b) - known(a) || direction * compareCells(text(a), text(b)));
    table.tBodies[0].append(...sorted, ...last);
  };

  const setUpSorting = (table) => {
    const heads = all("thead th", table);
    if (all("tbody > tr", table).length < 3) return;
    heads.forEach((head, column) => {
      const button = element("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sortTable(table, column, descending ? -1 : 1);
      });
    });
  };

  const setUpFilter = (table) => {
    const rows = all("tbody > tr", table);
    if (rows.length <= 12) return;
    const amount = element("span", { className: "soft", textContent: `${rows.length} rows` });
    const field = element("input", { type: "search", autocomplete: "off" });
    const box = table.closest(".scroll");
    box.before(element("div", { className: "filter" }, element("label", {}, "Filter ", field), amount));
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      rows.forEach((row) => {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
      });
      const left = rows.filter((row) => !row.hidden).length;
      amount.textContent = wanted ? `${left} of ${rows.length} rows` : `${rows.length} rows`;
      say(amount.textContent);
    });
  };

  /** A box that scrolls must be reachable by the keyboard, and one that does not need not be. */
  const watchOverflow = (box) => {
    const name = (box.querySelector("caption") ?? box.previousElementSibling)?.textContent ?? "Table";
    new ResizeObserver(() => {
      const over = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      for (const [key, value] of Object.entries({ tabindex: "0", role: "region", "aria-label": name })) {
        if (over) box.setAttribute(key, value);
        else box.removeAttribute(key);
      }
    }).observe(box);
  };

  // All

  /** Set up what is in an element; a page that replaces its parts calls this for the new ones. */
  const start = (root = document) => {
    document.documentElement.classList.add("js");
    all("button.copy", root).forEach(setUpCopy);
    all("table.sortable", root).forEach((table) => {
      setUpSorting(table);
      setUpFilter(table);
    });
    all(".scroll, .strip", root).forEach(watchOverflow);
    if (typeof charts !== "undefined") charts.start(root);
  };

  addEventListener("beforeprint", () => {
    all("details").forEach((details) => {
      details.open = true;
    });
    if (typeof charts !== "undefined") charts.drawAll();
  });

  start();
  return { start };
})();
