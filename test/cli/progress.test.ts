// Whatever may take long says once a second how far it has come.
import assert from "node:assert/strict";
import { test } from "node:test";
import { changeFound } from "../../src/cli/commands/operate.ts";
import { recoverWithProgress } from "../../src/cli/commands/recover.ts";
import { progress, type Terminal } from "../../src/cli/terminal.ts";
import type { Engine } from "../../src/engine/engine.ts";
import { job, open } from "../../src/index.ts";

test("at most a line a second, and none for what ends sooner", () => {
  let now = 0;
  const lines: string[] = [];
  const told = progress(
    (text) => lines.push(text),
    "recover",
    () => now,
  );
  for (; now < 3_500; now += 100) told(now * 10);
  assert.deepEqual(
    lines,
    [1_000, 2_000, 3_000].map((ms) => `recover: ${(ms * 10).toLocaleString("en-US")} jobs so far`),
  );
});

test("recover prints the number of jobs as it grows, and stops listening when it has ended", async () => {
  const listeners = new Set<() => void>();
  const engine = {
    on: (name: string, listener: () => void) => {
      assert.equal(name, "job.recovered");
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    operator: {
      recover: async () => {
        for (let n = 0; n < 3; n++) for (const listener of listeners) listener();
        return null;
      },
    },
  } as unknown as Engine;
  const told: number[] = [];
  await recoverWithProgress(engine, (jobs) => told.push(jobs));
  assert.deepEqual(told, [1, 2, 3]);
  assert.equal(listeners.size, 0);
});

test("counting for a filter without --yes prints its progress, and changes nothing", async () => {
  const mail = job<{ n: number }>("mail");
  await using engine = await open("sqlite::memory:", { jobs: [mail], logger: false });
  await engine.enqueueMany(
    mail,
    Array.from({ length: 2_500 }, (_, n) => ({ n })),
  );
  const lines: string[] = [];
  const terminal = { remark: (text: string) => lines.push(text) } as unknown as Terminal;
  let now = 0;
  const cancel = {
    name: "cancel",
    done: "cancelled",
    bulk: "cancel",
    states: ["queued"],
    apply: () => assert.fail("nothing may be changed"),
  } as const;
  const filter = { createdAfter: 0 };
  await assert.rejects(
    changeFound(terminal, engine, cancel, filter, false, {}, () => (now += 1_000)),
    /This would cancel 2,500 jobs; nothing was changed\. Add --yes/,
  );
  assert.ok(lines.length > 1, "a line for each page");
  assert.equal(lines.at(-1), "counting: 2,500 jobs so far");
});
