// Horizontal bars as an SVG, by hand and pure. The card brings its own background, so that it can be read on any page, and is dark
// where the reader prefers that.

export interface Bar {
  readonly label: string;
  readonly value: number;
  readonly text: string;
  readonly look: "ours" | "theirs" | "quoted";
}

export interface Chart {
  readonly title: string;
  readonly subtitle: string;
  readonly scale: "linear" | "log";
  /** Values on the axis with their labels; on a log scale the first is where bars begin. */
  readonly ticks: readonly (readonly [value: number, label: string])[];
  readonly bars: readonly Bar[];
}

const WIDTH = 860;
const LEFT = 250;
const RIGHT = 150;
const TOP = 74;
const ROW = 30;
const BAR = 18;

const STYLE = `
  text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2937; }
  .title { font-size: 17px; font-weight: 600; }
  .subtitle, .tick { font-size: 12px; fill: #6b7280; }
  .value { font-size: 13px; }
  .card { fill: #ffffff; stroke: #d1d5db; }
  .grid { stroke: #e5e7eb; }
  .ours { fill: #0d9488; }
  .theirs { fill: #94a3b8; }
  .quoted { fill: #f1f5f9; stroke: #94a3b8; stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e5e7eb; }
    .subtitle, .tick { fill: #9ca3af; }
    .card { fill: #111827; stroke: #374151; }
    .grid { stroke: #293548; }
    .ours { fill: #2dd4bf; }
    .theirs { fill: #64748b; }
    .quoted { fill: #1f2937; stroke: #64748b; }
  }`;

export function svgOf(chart: Chart): string {
  const height = TOP + chart.bars.length * ROW + 40;
  const bottom = TOP + chart.bars.length * ROW;
  const x = positions(chart);
  const grid = chart.ticks.map(
    ([value, label]) =>
      `<line class="grid" x1="${x(value)}" x2="${x(value)}" y1="${TOP - 8}" y2="${bottom}"/>` +
      `<text class="tick" x="${x(value)}" y="${bottom + 18}" text-anchor="middle">${escape(label)}</text>`,
  );
  const bars = chart.bars.map(({ label, value, text, look }, index) => {
    const y = TOP + index * ROW;
    const width = Math.max(2, x(value) - LEFT);
    const middle = y + BAR / 2 + 5;
    return (
      `<text x="${LEFT - 12}" y="${middle}" text-anchor="end">${escape(label)}</text>` +
      `<rect class="${look}" x="${LEFT}" y="${y}" width="${round(width)}" height="${BAR}" rx="3"/>` +
      `<text class="value" x="${round(LEFT + width + 8)}" y="${middle}">${escape(text)}</text>`
    );
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" aria-label="${escape(chart.title)}">`,
    `<style>${STYLE}\n</style>`,
    `<rect class="card" x="0.5" y="0.5" width="${WIDTH - 1}" height="${height - 1}" rx="8"/>`,
    `<text class="title" x="20" y="30">${escape(chart.title)}</text>`,
    `<text class="subtitle" x="20" y="50">${escape(chart.subtitle)}</text>`,
    ...grid,
    ...bars,
    "</svg>\n",
  ].join("\n");
}

function positions({ scale, ticks, bars }: Chart): (value: number) => number {
  const from = ticks[0]?.[0] ?? 0;
  const to = Math.max(ticks.at(-1)?.[0] ?? 1, ...bars.map(({ value }) => value));
  const at = scale === "log" ? Math.log10 : (value: number): number => value;
  return (value) => {
    const share = (at(Math.max(value, from)) - at(from)) / (at(to) - at(from));
    return round(LEFT + share * (WIDTH - LEFT - RIGHT));
  };
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

function escape(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
