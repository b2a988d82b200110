// The holder of the write lock: another program, for a time, and never longer than the rig lives.
import assert from "node:assert/strict";
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { NotDone } from "../../proof/torture/processes/fault-schedule.ts";
import { holdWriteLock } from "../../proof/torture/faults/write-lock.ts";
import { untilTrue } from "../support/processes.ts";

const HOLDER = fileURLToPath(new URL("../../proof/torture/faults/write-lock-holder.ts", import.meta.url));
const LONG_MS = 600_000;

function database(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-lock-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, "app.db");
  const db = new DatabaseSync(file);
  db.exec("PRAGMA journal_mode = WAL; CREATE TABLE t (a)");
  db.close();
  return file;
}

function isHeld(file: string): boolean {
  const db = new DatabaseSync(file, { timeout: 0 });
  try {
    db.exec("BEGIN IMMEDIATE; ROLLBACK");
    return false;
  } catch (thrown) {
    assert.match((thrown as Error).message, /locked/);
    return true;
  } finally {
    db.close();
  }
}

async function holder(t: TestContext, file: string): Promise<ChildProcess> {
  const child = fork(HOLDER, [file, String(LONG_MS)], { execArgv: ["--disable-warning=ExperimentalWarning"] });
  t.after(() => child.kill("SIGKILL"));
  await once(child, "message");
  return child;
}

test("while another program holds the write lock no other process writes, and afterwards all do", async (t) => {
  const file = database(t);
  const held = holdWriteLock(file, 1_000, new AbortController().signal);
  await untilTrue(() => isHeld(file), Boolean, "the lock is held");
  await held;
  assert.equal(isHeld(file), false);
});

test("the holder of the write lock does not outlive the process that started it", async (t) => {
  const file = database(t);
  const child = await holder(t, file);
  assert.ok(isHeld(file));
  const ended = once(child, "exit");
  child.disconnect();
  await ended;
  assert.equal(isHeld(file), false);
});

test("the holder of the write lock ends with the run", async (t) => {
  const file = database(t);
  const run = new AbortController();
  const held = holdWriteLock(file, LONG_MS, run.signal);
  await untilTrue(() => isHeld(file), Boolean, "the lock is held");
  run.abort();
  await held;
  await untilTrue(() => !isHeld(file), Boolean, "the lock is free");
});

test("a lock that can't be taken is a strike that was not done", async () => {
  await assert.rejects(holdWriteLock("/nowhere/app.db", 1, new AbortController().signal), NotDone);
});
