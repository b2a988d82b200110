// What the documents show are programs that run: each example as a real process, in a folder of its own, killed and started
// again where that is what it shows.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";
import amqplib from "amqplib";
import { SeenCollection } from "../examples/check-producer.ts";
import { alive } from "../examples/executor-jobs.ts";
import { job, open, type Run } from "../src/index.ts";
import { untilState, untilTrue } from "./support/processes.ts";
import { freshKind, sharedRabbitmq } from "./support/rabbitmq.ts";

const root = fileURLToPath(new URL("../", import.meta.url));
/** How long a line may take: a limit, never a wait. */
const LINE_MS = 60_000;

class Example {
  readonly exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  readonly #process: ChildProcess;
  readonly #heard = new Set<() => void>();
  stdout = "";
  stderr = "";
  #over = false;

  constructor(child: ChildProcess) {
    this.#process = child;
    child.stdout!.on("data", (data: Buffer) => {
      this.stdout += data.toString();
      for (const hear of this.#heard) hear();
    });
    child.stderr!.on("data", (data: Buffer) => (this.stderr += data.toString()));
    this.exited = new Promise((resolve) => {
      child.on("close", (code, signal) => {
        this.#over = true;
        for (const hear of this.#heard) hear();
        resolve({ code, signal });
      });
    });
  }

  get lines(): string[] {
    return this.stdout.trimEnd().split("\n");
  }

  kill(signal: NodeJS.Signals): void {
    this.#process.kill(signal);
  }

  /** Resolves when it has printed this. */
  until(pattern: RegExp): Promise<RegExpExecArray> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => done(new Error(`never printed: ${pattern}\n${this.#said()}`)), LINE_MS);
      const hear = (): void => {
        const found = pattern.exec(this.stdout);
        if (found) done(null, found);
        else if (this.#over) done(new Error(`ended before it printed: ${pattern}\n${this.#said()}`));
      };
      const done = (error: Error | null, found?: RegExpExecArray): void => {
        clearTimeout(timer);
        this.#heard.delete(hear);
        if (error) reject(error);
        else resolve(found!);
      };
      this.#heard.add(hear);
      hear();
    });
  }

  async untilEnd(): Promise<void> {
    assert.deepEqual(await this.exited, { code: 0, signal: null }, this.#said());
  }

  #said(): string {
    return `${this.stdout}\n${this.stderr}`;
  }
}

/** A folder, and examples that run in it. */
function folder(t: TestContext): { cwd: string; start: (name: string, ...args: string[]) => Example } {
  const cwd = mkdtempSync(join(tmpdir(), "outlive-example-"));
  const started: Example[] = [];
  t.after(async () => {
    for (const example of started) example.kill("SIGKILL");
    await Promise.all(started.map(({ exited }) => exited));
    rmSync(cwd, { recursive: true, force: true });
  });
  // An example that is a test itself reports to its own stdout, and not to the runner of this one.
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const start = (name: string, ...args: string[]): Example => {
    const example = new Example(
      spawn(process.execPath, ["--disable-warning=ExperimentalWarning", join(root, "examples", name), ...args], {
        cwd,
        env,
        stdio: ["ignore", "pipe", "pipe"],
      }),
    );
    started.push(example);
    return example;
  };
  return { cwd, start };
}

test("the README's program is examples/readme.ts, but for where it imports from", () => {
  const shown = /```ts\n([^]*?)```/.exec(readFileSync(`${root}README.md`, "utf8"))![1]!;
  const example = readFileSync(`${root}examples/readme.ts`, "utf8");
  const code = example.slice(example.indexOf("import {")).replace('import { job, open } from "../src/index.ts"', "");
  const written = shown.replace('import { job, open } from "outlive"', "");
  assert.equal(code.slice(code.indexOf("import * as z")), written.slice(written.indexOf("import * as z")));
  assert.ok(shown.includes('import { job, open } from "outlive";'));
  const lines = shown.split("\n").filter((line) => line.trim() !== "" && !/^\s*\/\//.test(line));
  assert.ok(lines.length <= 20, `${lines.length} lines`);
});

test("the README's program runs its job, and ends on SIGTERM", async (t) => {
  const { start } = folder(t);
  const program = start("readme.ts");
  await program.until(/^mailing \/tmp\/invoice-42\.pdf, idempotency key \w+:mail\n/);
  program.kill("SIGTERM");
  await program.untilEnd();
  assert.equal(program.stderr, "", "a clean start and stop is not worth a line");
});

test("the README's program, killed while it works and started again, leaves nothing undone", async (t) => {
  const { cwd, start } = folder(t);
  const first = start("readme.ts");
  await first.until(/mailing/);
  first.kill("SIGKILL");
  await first.exited;
  // Whether the kill came before or after the settlement is chance; nothing may be left either way.
  const second = start("readme.ts");
  await using engine = await open(`sqlite:${join(cwd, "jobs.db")}`, { logger: false });
  await untilTrue(
    () => engine.workers(),
    (workers) => workers.some(({ state }) => state === "live"),
    "the second one works, and so listens to SIGTERM",
  );
  const { jobs } = await untilTrue(
    () => engine.list(),
    (page) => page.jobs.every(({ state }) => state === "succeeded"),
    "every order is mailed",
  );
  assert.ok(jobs.length > 0);
  second.kill("SIGTERM");
  await second.untilEnd();
});

test("the transfers of examples/commit.ts are booked once each, however often it is killed", async (t) => {
  const { start } = folder(t);
  for (let kills = 0; kills < 2; kills++) {
    const killed = start("commit.ts");
    await killed.until(/working/);
    killed.kill("SIGKILL");
    await killed.exited;
  }
  for (let run = 0; run < 2; run++) {
    const program = start("commit.ts");
    await program.untilEnd();
    assert.deepEqual(program.lines, [
      "working",
      "ada has 10250 cents",
      "bob has 9750 cents",
      "together 20000 cents",
      "500 bookings of 500 jobs",
      "too-much is dead: ada does not have 999999999 cents",
    ]);
  }
});

test("examples/web-client.ts enqueues over HTTP, a worker in another process runs it, and bad requests get an error", async (t) => {
  const { start } = folder(t);
  const worker = start("web-client.ts", "worker");
  await worker.until(/working/);
  const web = start("web-client.ts");
  const [, url] = await web.until(/listening on (\S+)/);
  const post = (body: string): Promise<Response> => fetch(`${url}/invoices`, { method: "POST", body });

  const accepted = await post('{"orderId":"42"}');
  assert.equal(accepted.status, 202);
  const { id, created } = (await accepted.json()) as { id: string; created: boolean };
  assert.equal(created, true);
  await worker.until(/rendered \/tmp\/invoice-42\.pdf/);
  let job: { state: string; result: unknown };
  do job = (await (await fetch(`${url}/jobs/${id}`)).json()) as typeof job;
  while (job.state === "running");
  assert.deepEqual(job, { state: "succeeded", result: { path: "/tmp/invoice-42.pdf" } });

  for (const body of ['{"orderId":42}', '{"orderId":"a\\u0000b"}', "{}", "{broken", "null", "[]"]) {
    const refused = await post(body);
    assert.equal(refused.status, 400, body);
    assert.equal(typeof ((await refused.json()) as { error: string }).error, "string");
  }
  assert.equal((await fetch(`${url}/jobs/none`)).status, 404);
  assert.equal((await fetch(`${url}/elsewhere`)).status, 404);
  for (const program of [web, worker]) program.kill("SIGTERM");
  for (const program of [web, worker]) await program.untilEnd();
});

test("examples/graceful-shutdown.ts stops on SIGTERM, also if it comes twice, at no cost to its job, and goes on where it stopped", async (t) => {
  const { start } = folder(t);
  const first = start("graceful-shutdown.ts");
  await first.until(/page 2\n/);
  first.kill("SIGTERM");
  await first.until(/stopping\n/);
  first.kill("SIGTERM");
  await first.untilEnd();
  assert.match(first.stdout, /stopping\n[^]*the report is queued, 0 errors, 1 interruptions\n$/);
  const done = first.lines.filter((line) => line.startsWith("page "));
  const second = start("graceful-shutdown.ts");
  await second.untilEnd();
  const rest = second.lines.filter((line) => line.startsWith("page "));
  assert.deepEqual(
    [...done, ...rest],
    Array.from({ length: 12 }, (_, n) => `page ${n + 1}`),
    "every page was made once",
  );
  assert.ok(second.lines.includes(`going on after ${done.at(-1)} (released)`));
  assert.match(second.stdout, /done\nthe report is succeeded, 0 errors, 1 interruptions\n$/);
});

test("examples/approval.ts, killed while its orders sleep, goes on where they waited, and a click that is sent again adds nothing", async (t) => {
  const { start } = folder(t);
  const killed = start("approval.ts");
  for (const n of [1, 2, 3]) await killed.until(new RegExp(`order-${n}: a lamp is reserved`));
  killed.kill("SIGKILL");
  await killed.exited;
  for (let run = 0; run < 2; run++) {
    const program = start("approval.ts");
    await program.untilEnd();
    assert.deepEqual(
      program.lines.filter((line) => !line.endsWith("is reserved")),
      ["order-1: shipped by ann", "order-2: refused by bob", "order-3: expired"],
    );
  }
});

test("examples/fan-out.ts adds up the results of its children and says which failed", async (t) => {
  const program = folder(t).start("fan-out.ts");
  await program.untilEnd();
  assert.deepEqual(program.lines.slice(0, 2), ["10000 cents; missing: atlantis (dead)", "10000 cents, all there"]);
  assert.match(program.lines[2]!, /is dead: .* which is dead: there is no such region\. .*outlive why \w+$/);
  assert.doesNotMatch(program.stdout, /\.\./);
});

test("examples/bank-file.ts pays 100,000 rows, with a worker killed on the way, and finds every line at its place", async (t) => {
  const program = folder(t).start("bank-file.ts");
  await program.untilEnd();
  assert.deepEqual(program.lines, [
    "killed a worker with rows left: true",
    "99898 paid, 102 failed",
    "rows 100000, succeeded 99898, failed 102, left 0",
    "accepted.csv: 99898 lines, each at its place; workers ended by SIGKILL, null",
  ]);
  assert.match(program.stderr, / is gone; incident /, "the death is in the log");
});

test("the first program of docs/batches.md is in examples/bank-file.ts, line by line", () => {
  const page = readFileSync(`${root}docs/batches.md`, "utf8");
  const shown = /^```ts\n([^]*?)^```/m.exec(page)![1]!;
  const lines = shown.split("\n").filter((line) => line !== "" && !line.startsWith("import "));
  assert.ok(lines.length > 10);
  let rest = readFileSync(`${root}examples/bank-file.ts`, "utf8");
  for (const line of lines) {
    const at = rest.indexOf(`${line}\n`);
    assert.notEqual(at, -1, `in this order: ${line}`);
    rest = rest.slice(at + line.length);
  }
});

test("examples/limits.ts keeps to its limits", async (t) => {
  const program = folder(t).start("limits.ts");
  await program.untilEnd();
  assert.deepEqual(program.lines, [
    "acme: at most 2 at once",
    "beta: at most 3 at once",
    "24 calls took more than 0.7 s",
    "booked in order: 1, 2, 3",
    "beta was among the first three of 102, coil began after it was resumed",
  ]);
});

test("examples/middleware.ts is around the enqueue and the attempt, and both are in one trace", async (t) => {
  const program = folder(t).start("middleware.ts");
  await program.untilEnd();
  assert.deepEqual(program.lines, [
    "mail was enqueued: true",
    "attempt 1 of mail begins",
    "attempt 1 of mail: succeeded",
    "priority 5",
    "enqueue mail, process mail: one trace: true",
  ]);
});

test("examples/changes.ts changes jobs by hand, and the audit has every change", async (t) => {
  const program = folder(t).start("changes.ts");
  await program.untilEnd();
  const stdout = program.lines.join("\n");
  assert.match(
    stdout,
    /operator remove jobs kind="report" state="cancelled" 1\n.* operator edit job report-1 1\n.* ann promote/,
  );
  assert.match(stdout, /1 found, 1 removed, 0 failed$/m);
  assert.match(stdout, /result: 'the report of 2026-11'.*\n.*result: 'the report of 2026-12'/s);
});

test("examples/schedules.ts runs what was planned, and the latest of what was missed", async (t) => {
  const program = folder(t).start("schedules.ts");
  await program.untilEnd();
  assert.deepEqual(program.lines, [
    "acme: the report of any, planned for 2026-03-29T00:00:00.000Z",
    "nightly: the report of 2026-03-29, planned for 2026-03-29T01:00:00.000Z",
    "acme: the report of any, planned for 2026-03-29T12:00:00.000Z",
    "nightly: the report of 2026-03-30, planned for 2026-03-30T01:00:00.000Z, late",
    "next: 2026-03-31T01:00:00.000Z (+02:00)",
    "next: 2026-04-01T01:00:00.000Z (+02:00)",
    "skipped: 0",
  ]);
});

test("examples/testing.ts is a test that passes, days of which take moments", async (t) => {
  const example = folder(t).start("testing.ts");
  await example.untilEnd();
  assert.match(example.stdout, /^. pass 1$/m);
});

test("examples/llm-calls.ts has hundreds of calls in flight, each followed once", async (t) => {
  const program = folder(t).start("llm-calls.ts");
  await program.untilEnd();
  assert.deepEqual(program.lines, ["500 summaries, hundreds in flight at once", "summary of document 7"]);
});

test("examples/webhooks.ts delivers in order, signed, and disables what is gone", async (t) => {
  const program = folder(t).start("webhooks.ts");
  await program.untilEnd();
  assert.deepEqual(program.lines.toSorted(), [
    "disabled: gone, the endpoint returned 410",
    "given up: gone status 410",
    "in order: 1 signed, 2 signed, 3 signed",
  ]);
});

test("examples/gently.ts keeps to the rate of each host", async (t) => {
  const program = folder(t).start("gently.ts");
  await program.untilEnd();
  assert.deepEqual(program.lines, [
    "300 pages of 30 hosts",
    "each host got its 10 one by one",
    "hosts did not wait for each other",
  ]);
});

test("examples/rerun.ts runs again for what came during the run, and joins what belongs together", async (t) => {
  const program = folder(t).start("rerun.ts");
  await program.untilEnd();
  assert.deepEqual(program.lines.slice(0, 3), ["indexing version 1", "version 2: rerun", "version 3: rerun"]);
  const rest = program.lines.slice(3);
  assert.deepEqual(
    rest.filter((line) => line.startsWith("indexing")),
    ["indexing version 3"],
  );
  assert.deepEqual(
    rest.filter((line) => line.startsWith("searching")),
    ["searching for out"],
  );
  assert.equal(rest.filter((line) => line.startsWith("writing")).at(-1), "writing the count 4");
});

for (const [page, examples] of [
  ["waiting.md", ["approval.ts", "fan-out.ts"]],
  ["limits.md", ["limits.ts"]],
  ["dedupe.md", ["rerun.ts"]],
  ["schedules.md", ["schedules.ts"]],
  ["changes.md", ["changes.ts"]],
  ["requests.md", ["llm-calls.ts", "webhooks.ts", "gently.ts"]],
] as const) {
  test(`the code in docs/${page} is that of ${examples.join(" and ")}`, () => {
    const plain = (text: string): string =>
      text
        .split("\n")
        .map((line) => line.trim())
        .join("\n")
        .trim();
    const sources = examples.map((name) => plain(readFileSync(`${root}examples/${name}`, "utf8"))).join("\n");
    const blocks = [...readFileSync(`${root}docs/${page}`, "utf8").matchAll(/^```ts\n([^]*?)^```/gm)];
    assert.ok(blocks.length > 0);
    for (const [, block] of blocks) assert.ok(sources.includes(plain(block!)), block);
  });
}

test("executor-jobs: a heartbeat that is refused ends the attempt, and its rejection is not swallowed", async (t) => {
  const ends: unknown[] = [];
  const stuck = job<null>("stuck").handle((_, run) =>
    alive(run, () => new Promise<never>(() => {}), 5).catch((thrown: unknown) => {
      ends.push(thrown);
      throw thrown;
    }),
  );
  const engine = await open("sqlite::memory:", { jobs: [stuck], logger: false, poll: "20ms" });
  t.after(() => engine.close());
  await engine.start();
  const { id } = await engine.enqueue(stuck, null);
  await untilState(engine, id, "running");
  await engine.cancel(id);
  await untilState(engine, id, "cancelled");
  assert.equal(ends.length, 1);
  assert.equal((ends[0] as { why?: string }).why, "cancelled");
});

test("executor-jobs: a heartbeat that the store can't take now is logged and sent again, and the attempt goes on", async (t) => {
  const logged = t.mock.method(console, "error", () => {});
  let beats = 0;
  const done = Promise.withResolvers<string>();
  const run = {
    id: "a",
    signal: new AbortController().signal,
    heartbeat: () => {
      if (++beats === 3) done.resolve("done");
      return beats === 1 ? Promise.reject(new Error("the store is away")) : Promise.resolve();
    },
  } as Partial<Run> as Run;
  assert.equal(await alive(run, () => done.promise, 5), "done");
  assert.equal(logged.mock.callCount(), 1);
  assert.match(String(logged.mock.calls[0]!.arguments[0]), /heartbeat of job a failed and is sent again/);
});

test("examples/collect.ts, its worker killed in every state and its producer in the middle, has every part and the result once", async (t) => {
  const broker = await sharedRabbitmq();
  const before = process.env["OUTLIVE_BROKER"];
  process.env["OUTLIVE_BROKER"] = broker;
  t.after(() => {
    if (before === undefined) delete process.env["OUTLIVE_BROKER"];
    else process.env["OUTLIVE_BROKER"] = before;
  });
  const { cwd, start } = folder(t);
  const workers: Example[] = [];
  /** Lets a worker run until it prints this, and kills it there. */
  const killedAt = async (pattern: RegExp): Promise<void> => {
    const worker = start("collect.ts", "work");
    workers.push(worker);
    await worker.until(pattern);
    worker.kill("SIGKILL");
    await worker.exited;
  };
  const asking = killedAt(/^asks for tx-1$/m);
  asking.catch(() => {});
  await workers[0]!.until(/^working$/m);
  await start("collect.ts", "scan", "tx-1").untilEnd();
  await asking;
  const producer = start("collect.ts", "produce");
  const collecting = killedAt(/^part \d+$/m);
  collecting.catch(() => {});
  await producer.until(/^sent 9$/m);
  producer.kill("SIGKILL");
  await collecting;
  start("collect.ts", "produce");
  await killedAt(/^loads tx-1$/m);
  await killedAt(/^tx-1 is notified$|^result of tx-1$/m);
  const last = start("collect.ts", "work");
  await last.until(/^working$/m);
  await using engine = await open(`sqlite:${join(cwd, "scans.db")}`, { logger: false });
  const { jobs } = await untilTrue(
    () => engine.list(),
    ({ jobs: all }) =>
      all.length === 5 && all.every(({ state, id }) => state === "succeeded" || id === "tx-1:clean-up"),
    "everything that follows has run",
  );
  assert.equal(jobs.filter(({ kind }) => kind === "example-scan").length, 1, "one job follows the last part");
  assert.equal(jobs.filter(({ kind }) => kind === "example-result").length, 1, "the notification is one job");
  const found = (await engine.collection("tx-1"))!;
  assert.deepEqual(
    [found.state, found.series["files"]?.have, found.series["files"]?.missing, found.parked.length],
    ["notified", 12, "", 0],
  );
  const all = [...workers, last].map(({ stdout }) => stdout).join("");
  assert.match(all, /^loaded tx-1: 1 2 3 4 5 6 7 8 9 10 11 12$/m);
  assert.deepEqual(
    found.transitions.map(({ state }) => state),
    ["requested", "collecting", "complete", "notified"],
  );
});

test("examples/check-producer.ts says what is wrong with each message of a producer", () => {
  const part = (ordinal: unknown, more: Record<string, unknown> = {}) => ({
    "outlive-collection": "a",
    "outlive-series": "files",
    "outlive-ordinal": ordinal,
    ...more,
  });
  const good = new SeenCollection();
  for (const ordinal of [2, 1, 2]) good.see("part", Buffer.from(`${ordinal}`), part(ordinal), 2);
  assert.deepEqual(good.missing(), ["no series was announced, by a header or by outlive-total or outlive-last"]);
  good.see("header", Buffer.from('{"series":{"files":2}}'), { "outlive-collection": "a" }, 2);
  assert.deepEqual([good.problems, good.missing()], [[], []]);
  const bad = new SeenCollection();
  bad.see("part", Buffer.from("x"), part(1), 1);
  bad.see("part", Buffer.from("y"), part(1), 2);
  bad.see("part", Buffer.from("y"), part(0), 2);
  bad.see("part", Buffer.from("y"), part(5, { "outlive-sha256": "0" }), 2);
  bad.see("part", Buffer.from("y"), {}, 2);
  bad.see("header", Buffer.from("files: 3"), { "outlive-collection": "a" }, 2);
  bad.see("header", Buffer.from('{"series":{"files":3}}'), { "outlive-collection": "a" }, 2);
  bad.see("header", Buffer.from('{"series":{"files":4}}'), { "outlive-collection": "a" }, 2);
  const reasons = [
    /not persistent/,
    /other bytes than before/,
    /ordinal is 0/,
    /hash of outlive-sha256/,
    /no header outlive-collection/,
    /no header outlive-series/,
    /not JSON/,
    /with 4 parts, and 3 before/,
  ];
  assert.equal(bad.problems.length, reasons.length, bad.problems.join("\n"));
  for (const reason of reasons)
    assert.ok(
      bad.problems.some((one) => reason.test(one)),
      String(reason),
    );
  assert.deepEqual(bad.missing(), [
    "files 5 is beyond the 3 parts that were announced",
    "the series files lacks 2 of 3 parts",
  ]);
});

test("examples/check-producer.ts listens next to the real queues, and passes a producer that is right", async (t) => {
  const [kind, url] = [freshKind(), await sharedRabbitmq()];
  const checking = folder(t).start("check-producer.ts", url, kind);
  await checking.until(/^listens/m);
  const model = await amqplib.connect(url);
  t.after(() => model.close());
  const channel = await model.createConfirmChannel();
  const headers = { "outlive-collection": "a", "outlive-series": "files", "outlive-ordinal": 1, "outlive-last": true };
  channel.publish("outlive.collections", `${kind}.part`, Buffer.from("x"), {
    persistent: true,
    mandatory: true,
    headers,
  });
  await channel.waitForConfirms();
  await checking.untilEnd();
  assert.match(checking.stdout, /^a: as it should be$/m);
});
