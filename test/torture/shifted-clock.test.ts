// The clock that the rig moves under a process that runs: its wall clock jumps in every thread, and its monotonic ones do not.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { ONE_WORKER, shiftableClocks } from "../../proof/torture/faults/clock.ts";
import { untilTrue } from "../support/processes.ts";

const HOUR_MS = 3_600_000;
const READER = fileURLToPath(new URL("clock-reader.ts", import.meta.url));

/** What one process reads from its clocks, in its main thread and in another. */
interface Reading {
  readonly now: number;
  readonly date: number;
  readonly text: number;
  readonly given: number;
  readonly isDate: boolean;
  readonly mono: number;
  readonly history: number;
  readonly inThread: number;
}

async function reader(t: TestContext): Promise<{ pid: number; clocks: string; read: () => Promise<Reading> }> {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-clock-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const { env } = shiftableClocks(folder, ONE_WORKER);
  const child = fork(READER, { env: { ...process.env, ...env, OUTLIVE_TORTURE_HISTORY: folder }, execArgv: [] });
  t.after(() => child.kill("SIGKILL"));
  const read = async (): Promise<Reading> => {
    const said = once(child, "message") as Promise<[Reading]>;
    child.send("read");
    return (await said)[0];
  };
  return { pid: child.pid!, clocks: env["OUTLIVE_TORTURE_CLOCKS"]!, read };
}

/** Within the time that a busy machine takes to answer. */
function isNear(actual: number, expected: number): boolean {
  return Math.abs(actual - expected) < 60_000;
}

function assertNear(actual: number, expected: number, what: string): void {
  assert.ok(isNear(actual, expected), `${what}: ${actual}, not about ${expected}`);
}

for (const whose of ["all", "pid"] as const)
  test(`the clock of ${whose === "all" ? "every process" : "one process"} jumps and comes back, and nothing else does`, async (t) => {
    const { pid, clocks, read } = await reader(t);
    const file = join(clocks, whose === "all" ? "all" : String(pid));
    const before = await read();
    for (const key of ["now", "date", "text", "history", "inThread"] as const)
      assertNear(before[key], Date.now(), `${key} before`);
    for (const shift of [-HOUR_MS, HOUR_MS, 0]) {
      writeFileSync(`${file}.new`, String(shift));
      renameSync(`${file}.new`, file);
      // Each thread reads the file a hundred times a second.
      const jumped = (reading: Reading): boolean =>
        isNear(reading.now, Date.now() + shift) && isNear(reading.inThread, Date.now() + shift);
      const after = await untilTrue(read, jumped, `the clock jumps by ${shift} ms`);
      for (const key of ["date", "text"] as const) assertNear(after[key], Date.now() + shift, `${key}, ${shift} ms`);
      assertNear(after.history, Date.now(), "the instant of a line of its history");
      assertNear(after.mono - before.mono, 0, "the monotonic clock");
      assert.equal(after.given, 86_400_000, "a date that was given");
      assert.ok(after.isDate);
    }
  });

test("another process keeps its time", async (t) => {
  const { clocks, read } = await reader(t);
  writeFileSync(join(clocks, "1"), String(HOUR_MS));
  assertNear((await read()).now, Date.now(), "now");
});
