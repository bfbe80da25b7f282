"use strict";
// Tables: sort by a column, filter by text, copy as CSV
(() => {
  const UNITS = {
    ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, min: 6e10, h: 3.6e12, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, PB: 1e15,
    "%": 1, "×": 1, ppm: 1, FLOP: 1, kFLOP: 1e3, MFLOP: 1e6, GFLOP: 1e9, TFLOP: 1e12, PFLOP: 1e15, EFLOP: 1e18, k: 1e3, M: 1e6,
  };
  const NUMBER = /^([+−-]?)([\d,]*\.?\d+(?:e[+-]?\d+)?)(?:\s*([a-zµ%×]+))?(?:\/s(?:tep)?)?$/i;
  const NOTHING = /^[–—-]?$/;
  const words = new Intl.Collator(undefined, { numeric: true });
  const textOf = (cell) => cell.textContent.replace(/[\u00a0\u202f\u2060]/g, " ").trim();
  // The value of a cell in the smallest unit of its kind; null for a text
  const valueOf = (text) => {
    const [, sign, digits, unit] = text.match(NUMBER) || [];
    if (digits === undefined || (unit && UNITS[unit] === undefined)) return null;
    return (sign && sign !== "+" ? -1 : 1) * Number(digits.replace(/,/g, "")) * (unit ? UNITS[unit] : 1);
  };
  const made = (name, text, attributes = {}) => {
    const each = document.createElement(name);
    each.textContent = text;
    Object.entries(attributes).forEach(([key, value]) => each.setAttribute(key, value));
    return each;
  };
  // A program that opens the file must not take a name for a formula
  const csvCell = (text) => {
    const safe = /^[=+@\t\r-]/.test(text) && valueOf(text) === null && text !== "-" ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  const copy = (text) => {
    const hidden = made("textarea", "", { readonly: "", class: "skip" });
    hidden.value = text;
    document.body.append(hidden);
    hidden.select();
    const copied = document.execCommand("copy");
    hidden.remove();
    return copied;
  };

  document.querySelectorAll("main table").forEach((table) => {
    const head = table.tHead && table.tHead.rows[0];
    const rows = [...table.tBodies[0].rows];
    if (!head || rows.length < 2 || table.closest(".page")) return;
    const cells = rows.map((row) => [...row.cells].map(textOf));
    const titles = [...head.cells];
    const names = titles.map(textOf);
    let order = rows.map((_, i) => i), sorted = -1, isDown = false;
    // Rows of a tree begin with a dot for each row around them, and stay below it
    const depths = cells.map((row) => (row[0] || "").match(/^(?:· )*/)[0].length);
    const around = [];
    const above = depths.map((depth, i) => {
      while (around.length && depths[around[around.length - 1]] >= depth) around.pop();
      return around.push(i) > 1 ? around[around.length - 2] : -1;
    });
    const below = (parent) => order.filter((i) => above[i] === parent).flatMap((i) => [i, ...below(i)]);

    const arrange = () => table.tBodies[0].append(...order.map((i) => rows[i]));
    const sort = (column) => {
      const values = cells.map((row) => valueOf(row[column] || ""));
      const isNumeric = cells.every((row, i) => values[i] !== null || NOTHING.test(row[column] || "")) && values.some((value) => value !== null);
      const first = isNumeric;  // numbers begin with the largest, texts with the first
      if (sorted !== column) { sorted = column; isDown = first; }
      else if (isDown === first) isDown = !first;
      else sorted = -1;  // the third time: as written
      order = rows.map((_, i) => i);
      if (sorted >= 0) {
        order.sort((a, b) => {
          const [one, other] = [a, b].map((i) => cells[i][column] || "");
          const empty = NOTHING.test(one) - NOTHING.test(other);
          if (empty) return empty;  // unknown values are last in either order
          const by = isNumeric ? values[a] - values[b] : words.compare(one, other);
          return (isDown ? -by : by) || a - b;
        });
        if (above.some((i) => i >= 0)) order = below(-1);
      }
      titles.forEach((title, i) => {
        if (i === sorted) title.setAttribute("aria-sort", isDown ? "descending" : "ascending");
        else title.removeAttribute("aria-sort");
      });
      arrange();
    };
    titles.forEach((title, column) => {
      if (title.tagName !== "TH") return;
      const button = made("button", names[column], { type: "button", class: "sort" });
      button.addEventListener("click", () => sort(column));
      title.replaceChildren(button);
    });

    const line = made("p", "", { class: "chosen" });
    const says = made("output", "");
    if (rows.length > 7) {
      const label = made("label", "Filter "), field = made("input", "", { type: "search", size: "18" });
      label.append(field);
      field.addEventListener("input", () => {
        const wanted = field.value.toLowerCase().split(/\s+/);
        let left = 0;
        rows.forEach((row, i) => {
          row.hidden = !wanted.every((word) => cells[i].some((cell) => cell.toLowerCase().includes(word)));
          left += !row.hidden;
        });
        says.textContent = field.value ? `${left} of ${rows.length} rows` : "";
      });
      line.append(label);
    }
    const button = made("button", "Copy as CSV", { type: "button" });
    button.addEventListener("click", () => {
      const shown = order.filter((i) => !rows[i].hidden).map((i) => cells[i]);
      const text = [names, ...shown].map((row) => row.map(csvCell).join(",")).join("\n");
      says.textContent = copy(`${text}\n`) ? `${shown.length} rows copied` : "the browser does not allow copying";
    });
    line.append(button, says);
    (table.closest(".wide") || table).before(line);
  });
})();
