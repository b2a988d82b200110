// `outlive submit`, and what the other commands say of batches and their blocks.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { cli, type Said } from "../support/cli.ts";
import { Place } from "../support/processes.ts";
import { Fleet } from "../supervisor/fleet.ts";
import { noTerminal, TerminalRun } from "./screen.ts";

const SOURCE = (name: string): string => JSON.stringify(new URL(`../../src/${name}.ts`, import.meta.url).href);

const MODULE = `import { batch, job, TerminalError } from ${SOURCE("index")};
export const mail = job("mail").handle(() => {});
export const payments = batch("payments", { block: 10, retry: { attempts: 1 } });
payments.handle((row, run) => {
  if (row.input.cents === "0") throw new TerminalError("nothing to pay");
  run.write("paid.csv", \`\${row.line},\${row.input.iban},\${run.context?.bank}\\n\`);
});
`;

/** In a place: a module of jobs, a configuration whose blob store is made by code, and files of rows. */
function bank(place: Place, files: Readonly<Record<string, string>>): string {
  const { folder, url } = place;
  mkdirSync(join(folder, "jobs"));
  const jobs = JSON.stringify(join(folder, "jobs/*.mjs"));
  const config = `import { fileSystem } from ${SOURCE("blobs")};
export default { store: ${JSON.stringify(url)}, jobs: ${jobs}, blobs: fileSystem({ folder: "files" }) };\n`;
  const all = { "outlive.config.mjs": config, "jobs/payments.mjs": MODULE, ...files };
  for (const [name, text] of Object.entries(all)) writeFileSync(join(folder, name), text);
  return folder;
}

const CSV = `iban,cents\n${Array.from({ length: 25 }, (_, n) => `IB${n},${n === 7 ? 0 : 100 + n}\n`).join("")}`;

test("submit takes a CSV file, and --wait follows the batch to its end and its files", async (t) => {
  const fleet = new Fleet(t);
  const cwd = bank(fleet.place, { "november.csv": CSV });
  await fleet.work({ globs: [] }).working();
  const given = ["submit", "payments", "november.csv", "--key", "november", "--context", '{"bank":"acme"}'];
  const { code, stdout } = await cli(t, [...given, "--wait", "--json"], { cwd });
  const value = JSON.parse(stdout) as { id: string; rows: number; batch: { rows: object; outputs: never } };
  assert.equal(code, 0, stdout);
  assert.equal(value.rows, 25);
  assert.deepEqual(value.batch.rows, { total: 25, succeeded: 24, failed: 1, quarantined: 0, aborted: 0, left: 0 });
  const { blob } = (value.batch.outputs as Record<string, { blob: string }>)["paid.csv"]!;
  const lines = readFileSync(join(cwd, "files", blob), "utf8")
    .trimEnd()
    .split("\n");
  assert.deepEqual([lines.length, lines[0], lines[7]], [24, "2,IB0,acme", "10,IB8,acme"]);
  const again = await cli(t, given, { cwd });
  assert.deepEqual([again.code, again.stdout], [0, `${value.id}\n`], "the same key is the same batch");
  assert.match(again.stderr, /a batch with this key existed, with 25 rows/);
  const named = await cli(t, ["submit", "payments", "november.csv", "--actor", "ann", "--reason", "late"], { cwd });
  const audit = JSON.parse((await cli(t, ["audit", "--json"], { cwd })).stdout) as {
    entries: { actor: string; action: string; target: string; reason: string | null; count: number }[];
  };
  const kept = audit.entries.map(({ actor, action, target, reason, count }) => [actor, action, target, reason, count]);
  assert.deepEqual(kept[0], ["ann", "submit", `batch ${named.stdout.trim()}`, "late", 1]);
  assert.match(String(kept[1]![0]), /^cli\/.+@/);
  assert.deepEqual(kept[1]!.slice(1), ["submit", `batch ${value.id}`, null, 1]);
  assert.equal(kept.length, 2, "the batch that was there was not submitted again");
});

test("submit reads stdin and NDJSON, holds no row once all are stored, and says what is wrong", async (t) => {
  const place = new Place(t);
  const cwd = bank(place, { "broken.csv": 'iban,cents\nA,1\nB,"2\n', "one.ndjson": '{"iban":"A","cents":"1"}\n' });
  const run = (args: readonly string[], input = ""): Promise<Said> => cli(t, ["submit", ...args], { cwd, input });
  const piped = await run(["payments", "-", "--hold", "--priority", "3"], CSV);
  assert.equal(piped.code, 0, piped.stderr);
  assert.match(piped.stderr, /^25 rows in [\d.]+m?s\.\n$/);
  const engine = await place.engine({ jobs: [] });
  const id = piped.stdout.trim();
  assert.deepEqual((await engine.batch(id))?.state, "sealed");
  assert.equal((await engine.get(`${id}:1:0`))?.priority, 3);
  assert.equal((await run(["payments", "one.ndjson", "--format", "ndjson"])).code, 0);

  const before = (await engine.batches()).length;
  const cases: readonly [string[], number, RegExp][] = [
    [["paiments", "november.csv"], 3, /No module of .*\/jobs\/\*\.mjs exports a batch named "paiments"[^]*payments/],
    [["mail", "one.ndjson"], 2, /mail is a job, not a batch\.[^]*outlive enqueue mail/],
    [["payments", "missing.csv"], 1, /There is no file missing\.csv\.[^]*Nothing was submitted/],
    [["payments", "jobs"], 1, /jobs is a folder/],
    [["payments", "one.ndjson", "--format", "ndjson", "--context", "{"], 2, /The context is not JSON at line 1/],
  ];
  for (const [args, code, text] of cases) {
    const said = await run(args);
    assert.equal(said.code, code, said.stderr);
    assert.match(said.stderr, text);
  }
  assert.equal((await engine.batches()).length, before, "nothing was opened");
  const broken = await run(["payments", "broken.csv", "--key", "broken"]);
  assert.equal(broken.code, 1);
  assert.match(broken.stderr, /broken\.csv, line 3, column "cents"[^]*submit it again with the key "broken"/);
  assert.equal((await run(["payments", "one.ndjson", "--read-only"])).code, 1);
});

test("why names what a batch waits for, job its block's batch, and retry of a block the way to retry rows", async (t) => {
  const cwd = bank(new Place(t), { "november.csv": CSV });
  const id = (await cli(t, ["submit", "payments", "november.csv"], { cwd })).stdout.trim();
  const why = await cli(t, ["why", id], { cwd });
  assert.equal(why.code, 0, why.stderr);
  assert.match(why.stdout, /is sealed\. It has not ended: 25 rows have not ended\.\n +3 blocks wait for a worker\n/);
  assert.match(why.stdout, new RegExp(`The next, ${id}:1:\\d: .*[Nn]o `), "there is no worker");
  assert.match((await cli(t, ["job", `${id}:1:0`], { cwd })).stdout, new RegExp(`block of +batch ${id}`));
  assert.match((await cli(t, ["why", "nothing"], { cwd })).stderr, /There is no job or batch nothing/);
  await cli(t, ["abort", id], { cwd });
  const retried = await cli(t, ["retry", `${id}:1:0`], { cwd });
  assert.equal(retried.code, 4);
  assert.match(retried.stdout, new RegExp(`block of batch ${id}[^]*retry --batch ${id}`));
  assert.match((await cli(t, ["why", id], { cwd })).stdout, /is aborted\. It has ended\./);
});

test("on a terminal submit draws a bar with rows and rows per second in place", { skip: noTerminal }, async (t) => {
  const many = `iban,cents\n${Array.from({ length: 60_000 }, (_, n) => `IB${n},${n + 1}\n`).join("")}`;
  const place = new Place(t);
  const cwd = bank(place, { "many.csv": many });
  const args = ["submit", "payments", join(cwd, "many.csv"), "--config", join(cwd, "outlive.config.mjs")];
  const run = new TerminalRun(t, { columns: 100, rows: 24 }, args, place.url);
  assert.equal(await run.ended, 0, run.written);
  assert.match(run.written, /\r[█░]{30} [\d,]+ rows in, [\d,]+ rows\/s/);
  assert.ok(run.written.includes("\r\u001b[K60,000 rows in "), "the bar goes when all rows are in");
});
