"use strict";
/*
 * Values of points on hover and by keys; sorting, filtering and copying tables; saving figures and
 * the data. The page is complete without this script. The script requests nothing from a network,
 * and shows data as text, never as markup.
 */
(() => {
  const NARROW_SPACE = /\u202f/g;
  const DASH = "\u2013";
  const PNG_SCALE = 3;
  const ESCAPES = JSON.parse(document.querySelector("main").dataset.escapes);
  const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  function make(tag, attributes = {}, text = "") {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  }

  function button(text, label, act) {
    const made = make("button", { type: "button", "aria-label": label, title: label }, text);
    made.addEventListener("click", () => act(made));
    return made;
  }

  const status = make("p", { class: "unseen", role: "status" });
  function say(text) {
    status.textContent = text;
  }

  function save(name, blob) {
    const link = make("a", { download: name, href: URL.createObjectURL(blob) });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    say(`Saved ${name}`);
  }

  /* Tables */

  function words(cell) {
    const label = cell.querySelector(".label");
    const unit = cell.querySelector(".unit");
    if (label) return label.textContent.trim() + (unit ? ` (${unit.textContent.trim()})` : "");
    return cell.textContent.trim();
  }

  function read(table) {
    const rows = all("tbody tr", table).filter((row) => !row.hidden);
    return {
      caption: table.querySelector(".title").textContent.trim(),
      head: all("thead th", table).map(words),
      isText: all("thead th", table).map((cell) => cell.classList.contains("text")),
      rows: rows.map((row) => [...row.cells].map(words)),
    };
  }

  function markdown({ caption, head, isText, rows }) {
    const line = (cells) => `| ${cells.map((c) => c.replace(/[\\|]/g, "\\$&")).join(" | ")} |`;
    const rule = `|${isText.map((text) => (text ? " --- " : " ---: ")).join("|")}|`;
    return [`**${caption}**`, "", line(head), rule, ...rows.map(line), ""].join("\n");
  }

  const tex = (text) => [...text].map((letter) => ESCAPES.tex[letter] ?? letter).join("");

  function latex({ caption, head, isText, rows }) {
    // A row begins with {}: after \\, a [ or * would be an option. An empty line would end it.
    const cell = (text) => tex(text.replace(/\s*[\r\n]\s*/g, " "));
    const line = (cells) => `{}${cells.map(cell).join(" & ")} \\\\`;
    return [
      "\\begin{table}", "  \\centering", `  \\caption{${cell(caption)}}`,
      `  \\begin{tabular}{${isText.map((text) => (text ? "l" : "r")).join("")}}`, "    \\hline",
      `    ${line(head)}`, "    \\hline", ...rows.map((row) => `    ${line(row)}`), "    \\hline",
      "  \\end{tabular}", "\\end{table}", "",
    ].join("\n");
  }

  /* A quote keeps a spreadsheet from running a cell's text as a formula; numbers need none. */
  function csvCell(value) {
    const text = String(value).replace(NARROW_SPACE, "").replace(/\r/g, " ");
    const safe = ESCAPES.formula.includes(text[0]) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }
  const csvLines = (rows) => rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
  const csv = ({ head, rows }) =>
    csvLines([head, ...rows.map((row) => row.map((cell) => (cell === DASH ? "" : cell)))]);

  async function copy(text, pressed) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { class: "unseen" });
      document.body.append(area);
      area.value = text;
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    say("Copied");
    pressed.classList.add("done");
    setTimeout(() => pressed.classList.remove("done"), 1200);
  }

  function amount(text) {
    const digits = text.replace(NARROW_SPACE, "").match(/^[+-]?\d+(\.\d+)?(e[+-]?\d+)?(?=\s|$)/i);
    if (!digits) return null;
    const unit = text.replace(NARROW_SPACE, "").slice(digits[0].length).trim();
    return Number(digits[0]) * (UNITS[unit] ?? 1);
  }

  function order(table, column, direction) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.forEach((row, index) => (row.dataset.place ??= index));
    const key = (row) => {
      const text = words(row.cells[column]);
      return { text, amount: amount(text), place: Number(row.dataset.place) };
    };
    const keyed = rows.map((row) => [key(row), row]);
    keyed.sort(([a], [b]) => {
      if (!direction) return a.place - b.place;
      if (a.amount !== null && b.amount !== null)
        return direction * (a.amount - b.amount) || a.place - b.place;
      if (a.amount === null && b.amount === null)
        return direction * a.text.localeCompare(b.text) || a.place - b.place;
      return a.amount === null ? 1 : -1;
    });
    body.append(...keyed.map(([, row]) => row));
  }

  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };
  const DIRECTIONS = { none: 0, ascending: 1, descending: -1 };

  function sortable(table) {
    all("thead th", table).forEach((cell, column) => {
      const label = cell.querySelector(".label");
      const press = make("button", { type: "button", class: "sort" }, label.textContent);
      press.addEventListener("click", () => {
        const state = NEXT[cell.getAttribute("aria-sort") ?? "none"];
        all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
        if (state !== "none") cell.setAttribute("aria-sort", state);
        order(table, column, DIRECTIONS[state]);
        say(`Sorted by ${label.textContent}: ${state}`);
      });
      label.replaceChildren(press);
    });
  }

  function tableTools(table) {
    const tools = make("span", { class: "tools" });
    for (const [name, short, write] of [
      ["Markdown", "md", markdown], ["LaTeX", "tex", latex], ["CSV", "csv", csv],
    ])
      tools.append(button(short, `Copy the table as ${name}`, (b) => copy(write(read(table)), b)));
    table.querySelector(".title").after(tools);
    if (table.tBodies[0].rows.length > 1) sortable(table);
  }

  /* Show only rows with a text: hide tables and sections without such a row, open folds with one. */

  function filter(text) {
    const wanted = text.trim().toLowerCase();
    let shown = 0, tables = 0;
    for (const table of all("table")) {
      const ofTable = table.querySelector(".title").textContent.toLowerCase().includes(wanted);
      let count = 0;
      for (const row of table.tBodies[0].rows) {
        row.hidden = !ofTable && !row.textContent.toLowerCase().includes(wanted);
        count += !row.hidden;
      }
      table.closest(".table").hidden = count === 0;
      shown += count;
      tables += count > 0;
      const fold = table.closest("details");
      if (!fold) continue;
      fold.dataset.was ??= String(fold.open);
      fold.open = wanted ? fold.open || count > 0 : fold.dataset.was === "true";
      if (!wanted) delete fold.dataset.was;
    }
    document.body.classList.toggle("filtered", wanted !== "");
    const matches = wanted ? `${shown} rows in ${tables} tables` : "";
    document.getElementById("matches").textContent = matches;
    say(matches);
  }

  /* Figures */

  function standalone(svg) {
    const clone = svg.cloneNode(true);
    const box = (svg.dataset.saved ?? svg.getAttribute("viewBox")).split(/\s+/).map(Number);
    clone.setAttribute("viewBox", box.join(" "));
    clone.setAttribute("width", box[2]);
    clone.setAttribute("height", box[3]);
    clone.removeAttribute("tabindex");
    const paper = document.createElementNS(svg.namespaceURI, "rect");
    for (const [name, value] of [["width", box[2]], ["height", box[3]], ["fill", "#ffffff"]])
      paper.setAttribute(name, value);
    clone.prepend(paper);
    // Always the colours of the light scheme.
    const text = new XMLSerializer().serializeToString(clone);
    return { text: text.replace(/var\(--[\w-]+,\s*(#[0-9a-fA-F]+)\)/g, "$1"), box };
  }

  function svgBlob(svg) {
    return new Blob([standalone(svg).text], { type: "image/svg+xml" });
  }

  async function png(svg) {
    const [, , width, height] = standalone(svg).box;
    const address = URL.createObjectURL(svgBlob(svg));
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = make("canvas", { width: width * PNG_SCALE, height: height * PNG_SCALE });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(address);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  const tip = make("div", { class: "tip", "aria-hidden": "true" });
  tip.hidden = true;
  const points = new WeakMap();

  function point(mark) {
    all("svg .at").forEach((other) => other.classList.remove("at"));
    mark.classList.add("at");
    tip.textContent = points.get(mark);
    tip.hidden = false;
    const place = mark.getBoundingClientRect();
    const left = place.left + place.width / 2 - tip.offsetWidth / 2;
    const edge = document.documentElement.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(4, Math.min(left, edge)) + scrollX}px`;
    const above = place.top - tip.offsetHeight - 6;
    tip.style.top = `${(above < 0 ? place.bottom + 6 : above) + scrollY}px`;
  }

  function unpoint() {
    tip.hidden = true;
    all("svg .at").forEach((other) => other.classList.remove("at"));
  }

  function hover(svg) {
    const marks = all("title", svg).map((title) => title.parentNode).filter((m) => m !== svg);
    if (!marks.length) return;
    for (const mark of marks) {
      const title = mark.querySelector("title");
      points.set(mark, title.textContent);
      title.remove(); // Else the browser shows a second tip.
      mark.addEventListener("pointerenter", () => point(mark));
      mark.addEventListener("pointerleave", unpoint);
    }
    let at = -1;
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("blur", unpoint);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") unpoint();
      if (!step) return;
      event.preventDefault();
      at = at < 0 && step < 0 ? marks.length - 1 : (at + step + marks.length) % marks.length;
      point(marks[at]);
      say(tip.textContent);
    });
  }

  function figureTools(figure) {
    const svg = figure.querySelector("svg");
    if (!svg) return;
    const name = `lockstep-${figure.id.replace(/^figure-/, "").replace(/[^\w.-]+/g, "-")}`;
    const tools = make("span", { class: "tools" });
    tools.append(
      button("svg", "Save the figure as SVG", () => save(`${name}.svg`, svgBlob(svg))),
      button("png", "Save the figure as PNG", async () => save(`${name}.png`, await png(svg))),
    );
    figure.querySelector("figcaption").append(tools);
    hover(svg);
  }

  /* The data */

  async function data() {
    const packed = atob(document.getElementById("data").textContent.trim());
    const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(plain).text();
  }

  async function dataCsv() {
    const { points: records } = JSON.parse(await data());
    const names = Object.keys(records[0] ?? {});
    const cell = (value) => {
      if (value === null) return "";
      return typeof value === "object" ? JSON.stringify(value) : value;
    };
    return csvLines([names, ...records.map((record) => names.map((name) => cell(record[name])))]);
  }

  function pageTools() {
    const tools = make("p", { class: "page-tools" });
    const label = make("label", {}, "Filter rows ");
    const input = make("input", { type: "search", id: "filter" });
    input.addEventListener("input", () => filter(input.value));
    label.append(input);
    tools.append(label, make("span", { id: "matches" }));
    if (document.getElementById("data"))
      tools.append(
        button("Data as JSON", "Save all points as JSON", async () =>
          save("lockstep-points.json", new Blob([await data()], { type: "application/json" }))),
        button("Data as CSV", "Save all points as CSV", async () =>
          save("lockstep-points.csv", new Blob([await dataCsv()], { type: "text/csv" }))),
      );
    document.querySelector("nav").after(tools);
  }

  /* A fold cannot be opened on paper: those that a print needs are open while the page prints. */

  const opened = [];
  addEventListener("beforeprint", () => {
    opened.push(...all("details.prints:not([open])"));
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of opened.splice(0)) fold.open = false;
  });

  document.body.append(status, tip);
  pageTools();
  all("table").forEach(tableTools);
  all("figure").forEach(figureTools);
})();
