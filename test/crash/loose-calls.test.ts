// Calls of a handler that it did not await, and that fail: a warning, and never the end of a process that runs other jobs, too.
import assert from "node:assert/strict";
import { test } from "node:test";
import { script } from "../engine/engines.ts";
import { Place } from "../support/processes.ts";

/** Runs one job that leaves `calls` behind next to one that does nothing wrong. Its last line is what happened, as JSON. */
function program(calls: { readonly whileItRuns?: string; readonly afterItsEnd?: string }): string {
  return `
    const { open } = await import(SRC + "index.ts");
    const { job } = await import(SRC + "index.ts");
    const { sqlite } = await import(SRC + "sqlite.ts");
    const { setImmediate: turn } = await import("node:timers/promises");
    const ended = Promise.withResolvers();
    const called = Promise.withResolvers();
    const leaky = job("leaky").handle((_, run) => {
      ${calls.whileItRuns ?? ""}
      void ended.promise.then(() => {
        ${calls.afterItsEnd ?? ""}
        called.resolve();
      });
    });
    const innocent = job("innocent").handle(async (_, run) => {
      await called.promise;
      // Node reports an unhandled rejection at the end of a turn of the event loop.
      for (let i = 0; i < 20; i++) await turn();
      return "done";
    });
    const lines = [];
    const logger = { info() {}, warn: (line) => lines.push(line), error: (line) => lines.push(line) };
    const engine = await open(ARGS[0], { jobs: [leaky, innocent], logger });
    const events = [];
    engine.on("call.failed", (event) => events.push(event));
    engine.on("job.succeeded", ({ jobId }) => (jobId === "leaky-1" ? ended.resolve() : finished.resolve()));
    const finished = Promise.withResolvers();
    await engine.enqueue(innocent, null, { id: "innocent-1" });
    await engine.enqueue(leaky, null, { id: "leaky-1" });
    await engine.start();
    await finished.promise;
    const { steps, progress, log } = await engine.get("leaky-1");
    await engine.close();
    console.log(JSON.stringify({ events, lines, kept: { steps: steps.length, progress, log: log.length } }));`;
}

interface Happened {
  readonly events: readonly {
    readonly call: string;
    readonly kind: string;
    readonly attemptEnded: boolean;
    readonly error: { readonly message: string };
  }[];
  readonly lines: readonly string[];
  readonly kept: { readonly steps: number; readonly progress: unknown; readonly log: number };
}

for (const [call, code] of [
  ["progress", "run.progress(1)"],
  ["log", 'run.log("late")'],
  ["heartbeat", "run.heartbeat()"],
  ["step", 'run.step("late", () => 1)'],
  ["enqueue", "run.enqueue(leaky, null)"],
  ["commit", "run.commit(sqlite, () => {})"],
] as const) {
  test(`run.${call} after the handler's end that is not awaited is one warning with job and kind, and the other jobs of the process go on`, async (t) => {
    const { url } = new Place(t);
    const { code: exit, stdout, stderr } = await script(program({ afterItsEnd: `${code}; ${code};` }), { args: [url] });
    assert.equal(exit, 0, stderr);
    const { events, lines, kept } = JSON.parse(stdout) as Happened;
    assert.deepEqual(
      events.map((event) => [event.call, event.kind, event.attemptEnded]),
      [[call, "leaky", true]],
    );
    assert.equal(lines.length, 1, lines.join("\n"));
    assert.match(
      lines[0]!,
      new RegExp(`^run\\.${call} of job leaky-1 \\(leaky\\) failed after the end of attempt 1: .*Await everything`),
    );
    assert.deepEqual(kept, { steps: 0, progress: null, log: 0 });
  });
}

test("a step that is not awaited and fails after the handler's end is a warning, too", async (t) => {
  const { url } = new Place(t);
  const whileItRuns = 'run.step("loose", async () => { await ended.promise; throw new Error("card declined"); });';
  const { code, stdout, stderr } = await script(program({ whileItRuns }), { args: [url] });
  assert.equal(code, 0, stderr);
  const { lines } = JSON.parse(stdout) as Happened;
  assert.deepEqual(lines, ["run.step of job leaky-1 (leaky) failed after the end of attempt 1: card declined"]);
});

test("run.progress that is not awaited and fails while the handler runs is a warning, too", async (t) => {
  const { url } = new Place(t);
  const { code, stdout, stderr } = await script(program({ whileItRuns: "run.progress(10n);" }), { args: [url] });
  assert.equal(code, 0, stderr);
  const { events, lines } = JSON.parse(stdout) as Happened;
  assert.equal(lines.length, 1, lines.join("\n"));
  assert.match(lines[0]!, /^run\.progress of job leaky-1 \(leaky\) failed.*: The progress of job leaky-1 /);
  assert.equal(events.length, 1);
});

test("a step that is not awaited and fails while the handler runs ends the process, as in any program", async (t) => {
  const { url } = new Place(t);
  const whileItRuns = 'run.step("loose", () => { throw new Error("card declined"); }); return new Promise(() => {});';
  const { code, stderr } = await script(program({ whileItRuns }), { args: [url] });
  assert.equal(code, 1);
  assert.match(stderr, /card declined/);
});
