// What `outlive work` says when it can't begin, and what it takes for a job.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { findModules, loadJobs } from "../../src/cli/supervisor/job-modules.ts";
import { loadConfig } from "../../src/engine/config.ts";
import { listenAddress } from "../../src/engine/option-checks.ts";
import { OutliveError } from "../../src/index.ts";
import { slow } from "../support/jobs.ts";
import { untilTrue } from "../support/processes.ts";
import { Fleet, JOBS } from "./fleet.ts";

const OUTLIVE = fileURLToPath(new URL("../../src/index.ts", import.meta.url));

function folder(fleet: Fleet, files: Readonly<Record<string, string>>): string {
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(join(fleet.place.folder, name, ".."), { recursive: true });
    writeFileSync(join(fleet.place.folder, name), text.replaceAll("OUTLIVE", JSON.stringify(OUTLIVE)));
  }
  return fleet.place.folder;
}

test("by default jobs are found in the modules of jobs/, in arrays and objects one level deep, each once, and tests and declarations are omitted", async (t) => {
  const fleet = new Fleet(t);
  const base = folder(fleet, {
    "jobs/a.ts": `import { job } from OUTLIVE;
      export const one = job("one").handle(() => {}); export const list = [one, job("two").handle(() => {})];
      export const contractOnly = job("three"); export const number = 1; export const nothing = null;`,
    "jobs/deep/b.mjs": `import { one } from "../a.ts"; export const all = { one }; export default function f() {}`,
    "jobs/d.ts": "export {};",
    "jobs/test.ts": "export {};",
    "jobs/latest.ts": "export {};",
    ...Object.fromEntries(
      ["types.d.ts", "types.d.mts", "a.test.ts", "a.test.mts", "a.test.js", "deep/a.spec.mjs", "deep/a.spec.ts"].map(
        (name) => [`jobs/${name}`, "throw new Error('never loaded');"],
      ),
    ),
    "jobs/node_modules/x/index.ts": "throw new Error('never loaded');",
  });
  const { jobs: patterns } = await loadConfig({ flags: {}, env: {}, cwd: base });
  const globs = { base, patterns };
  assert.deepEqual(
    await findModules(globs),
    ["a.ts", "d.ts", "deep/b.mjs", "latest.ts", "test.ts"].map((name) => join(base, "jobs", name)),
  );
  assert.deepEqual(
    (await loadJobs(globs)).map(({ name }) => name),
    ["one", "two"],
  );
});

test("a test is loaded if it is named itself", async (t) => {
  const base = folder(new Fleet(t), { "jobs/a.test.ts": "" });
  const found = (pattern: string): Promise<string[]> => findModules({ base, patterns: [pattern] });
  assert.deepEqual(await found("jobs/*.test.ts"), []);
  assert.deepEqual(await found("jobs/a.test.ts"), [join(base, "jobs/a.test.ts")]);
});

test("patterns that match nothing, and modules without a handler, are named", async (t) => {
  const fleet = new Fleet(t);
  const base = folder(fleet, {
    "jobs/a.ts": `import { job } from OUTLIVE; export const bare = job("bare");`,
    "broken/a.ts": "throw new Error('not today');",
  });
  const says = (patterns: string[], pattern: RegExp): Promise<void> =>
    assert.rejects(
      loadJobs({ base, patterns }),
      (thrown) => thrown instanceof OutliveError && pattern.test(thrown.message),
    );
  await says(["nowhere/*.ts", "elsewhere/*.js"], /^No file matches "nowhere\/\*\.ts", "elsewhere\/\*\.js" in /);
  await says(["jobs/*.ts"], /1 file matches "jobs\/\*\.ts".* none exports a job with a handler \(without one: bare\)/);
  await says(["broken/*.ts"], /broken\/a\.ts can't be loaded: Error: not today/);
});

test("a start that can't succeed ends with the reason and its exit code, whatever the number of processes", async (t) => {
  const fleet = new Fleet(t);
  const supervised = fleet.work({ globs: ["nowhere/*.ts"], args: ["--processes", "2"] });
  assert.deepEqual(await supervised.exited, { code: 2, signal: null });
  assert.match(supervised.lines.map(({ message }) => message).join("\n"), /could not start: No file matches "nowhere/);
});

test("--only with a typo is an error about --only that names the nearest kind", async (t) => {
  const fleet = new Fleet(t);
  const supervised = fleet.work({ args: ["--only", "slwo"] });
  assert.deepEqual(await supervised.exited, { code: 2, signal: null });
  assert.match(
    supervised.lines.map(({ message }) => message).join("\n"),
    /could not start: --only names "slwo", and no module exports a job of that name\. Did you mean slow\?/,
  );
});

test("--only and --concurrency per kind reach each worker process", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const args = ["--processes", "2", "--only", "slow,transfer", "--concurrency", "slow=3,transfer=4"];
  await fleet.work({ args }).working(2);
  const workers = await engine.workers();
  assert.deepEqual(
    workers.map(({ kinds, concurrency }) => [kinds.toSorted(), concurrency]),
    [
      [["slow", "transfer"], 7],
      [["slow", "transfer"], 7],
    ],
  );
});

for (const [args, what] of [
  [["--concurrency", "many"], /Use a whole number from 1 to 10000, or one per kind \(as text: mail=5,render=2\)/],
  [["--processes", "0"], /Use a whole number from 1 to 256/],
  [["--http", "example.org"], /Use "HOST:PORT"/],
  [["--store", "sqlite::memory:"], /can't share sqlite::memory:/],
  [["--grace", "soon"], /--grace/],
  [["--log", "loud"], /Use "pretty" or "json"/],
  [["--middleware", "none.ts"], /The module none\.ts of the middleware does not exist/],
  [["--middleware", JOBS], /has no middleware as its default export/],
] as const) {
  test(`it refuses ${args.join(" ")} before anything is started`, async (t) => {
    const supervised = new Fleet(t).work({ args });
    assert.equal((await supervised.exited).code, 2);
    assert.match(supervised.other, what);
    assert.deepEqual(supervised.lines, []);
  });
}

test("an address without a host is the loopback one; any other must be named", () => {
  assert.deepEqual(listenAddress("9090"), { host: "127.0.0.1", port: 9090 });
  assert.deepEqual(listenAddress(":9090"), { host: "127.0.0.1", port: 9090 });
  assert.deepEqual(listenAddress("0.0.0.0:80"), { host: "0.0.0.0", port: 80 });
  assert.deepEqual(listenAddress("[::1]:9090"), { host: "::1", port: 9090 });
  for (const text of ["", "host", "host:", "1.2.3.4:99999", "::1:80", "a b:80", "http://x:80", "off"])
    assert.equal(listenAddress(text), null, text);
});

test("processes, http and other options may be set by file and environment; a flag wins", async (t) => {
  const fleet = new Fleet(t);
  mkdirSync(fleet.place.folder, { recursive: true });
  const config = join(fleet.place.folder, "outlive.yaml");
  writeFileSync(config, "work:\n  processes: 5\n  concurrency: 3\n  http: 0\n");
  const supervised = fleet.work({ args: ["--processes", "1"], env: { OUTLIVE_WORK_PROCESSES: "2" } });
  const [line] = await supervised.said(/ starts \d+ workers? for /);
  assert.equal(line!["processes"], 1);
  const [served] = await supervised.said(/ serves \/live/);
  assert.match(String(served!["http"]), /^127\.0\.0\.1:\d+$/);
  await supervised.working();
  const engine = await fleet.place.engine();
  assert.deepEqual(
    (await engine.workers()).map(({ concurrency }) => concurrency),
    [3],
  );
});

test("middleware that the configuration names is around the attempts of the workers, and hears the supervisor's recoveries", async (t) => {
  const fleet = new Fleet(t);
  const { folder } = fleet.place;
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "outlive.yaml"), "work:\n  middleware: [outer.ts, inner.ts]\n");
  const noting = (name: string): string => `import { appendFileSync } from "node:fs";
    const note = (text) => appendFileSync(${JSON.stringify(join(folder, "noted"))}, text + "\\n");
    export default {
      attempt: ({ kind }, next) => (note("${name} " + kind), next()),
      event: ({ name, jobId }) => name === "job.recovered" && note("${name} recovered " + (process.send ? "in a worker" : "in the supervisor")),
    };`;
  for (const name of ["outer", "inner"]) writeFileSync(join(folder, `${name}.ts`), noting(name));
  const engine = await fleet.place.engine();
  const supervised = fleet.work();
  const [pid] = await supervised.working();
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  const noted = (count: number): Promise<string[]> =>
    untilTrue(
      () => readFileSync(join(folder, "noted"), { encoding: "utf8", flag: "a+" }).split("\n").slice(0, -1),
      (lines) => lines.length >= count,
      `${count} lines were noted`,
    );
  assert.deepEqual(await noted(2), ["outer slow", "inner slow"]);
  process.kill(pid!, "SIGKILL");
  assert.deepEqual((await noted(6)).slice(2, 4), [
    "outer recovered in the supervisor",
    "inner recovered in the supervisor",
  ]);
  await engine.cancel(id);
});

test("FR-003 a start-up recovery that finds nothing is logged once, by the supervisor, and its periodic passes are not", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const supervised = fleet.work({ env: { OUTLIVE_HEARTBEAT_INTERVAL: "200ms" } });
  await supervised.working();
  // The supervisor makes a pass with every heartbeat of its worker.
  await untilTrue(
    () => engine.workers(),
    ([worker]) => worker !== undefined && worker.beats >= 8,
    "the worker has sent eight heartbeats",
  );
  const recoveries = supervised.lines.map(({ message }) => message).filter((message) => message.includes("recovery"));
  assert.equal(recoveries.length, 1, recoveries.join("\n"));
  assert.match(recoveries[0]!, /^start-up recovery: nothing to recover \(\d+ ms\)/);
});
