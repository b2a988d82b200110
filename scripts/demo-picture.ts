// `npm run demo-picture`: runs the demo and writes docs/demo.svg, what it printed at its end, as the README shows it.
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../", import.meta.url));
const { status, stdout, stderr } = spawnSync(
  process.execPath,
  ["--disable-warning=ExperimentalWarning", "proof/demo.ts", ...process.argv.slice(2)],
  { cwd: root, encoding: "utf8", env: { ...process.env, NO_COLOR: "1" } },
);
if (status !== 0) throw new Error(`The demo failed: ${stderr}`);
writeFileSync(new URL("../docs/demo.svg", import.meta.url), pictureOf(`$ npx outlive demo\n\n${shown(stdout)}`));
console.log("docs/demo.svg");

/** From the first heading of its account to the audit, and its last line. */
function shown(output: string): string {
  const from = output.indexOf(" What was done to it");
  const to = output.indexOf(" One of the incidents");
  if (from < 0 || to < from) throw new Error("The output of the demo has other headings than this script knows.");
  return `${output.slice(from, to)}${output.trimEnd().split("\n").at(-1)!}`;
}

function pictureOf(text: string): string {
  const lines = text.split("\n").map((line) => line.trimEnd());
  const lineHeight = 19;
  const width = 40 + 8.45 * Math.max(...lines.map((line) => line.length));
  const height = 36 + lines.length * lineHeight;
  const rows = lines.map((line, i) => {
    const look = /^ \S/.test(line) ? "heading" : line.startsWith("$") ? "typed" : line.includes("✓") ? "kept" : "plain";
    return `<text class="${look}" x="20" y="${34 + i * lineHeight}">${escaped(line)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${Math.ceil(width)}" height="${height}" viewBox="0 0 ${Math.ceil(width)} ${height}" role="img" xml:space="preserve">
<title>What the demo prints: what was done to the workers, what came back, and the audit of the data</title>
<style>
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d1d5db; white-space: pre; }
  .heading, .typed { fill: #ffffff; font-weight: 600; }
  .kept { fill: #4ade80; }
</style>
<rect width="100%" height="100%" rx="8" fill="#111827"/>
${rows.join("\n")}
</svg>
`;
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
