// How rows become what people see, above all damaged ones. All stores share it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { JOB_STATES } from "../../src/job/job.ts";
import {
  fromStored,
  type JobColumns,
  jobInfo,
  kindSettings,
  storedValue,
  toStored,
  wholeIncident,
} from "../../src/stores/rows.ts";

const row: JobColumns = {
  seq: 7,
  id: "job_1",
  kind: "mail",
  state: JOB_STATES.indexOf("running"),
  priority: 0,
  dedupe_key: null,
  created_at: 10,
  run_at: null,
  started_at: 20,
  deadline_at: 30,
  finished_at: 40,
  worker: "w1",
  epoch: 5,
  fence: 1,
  errors: 1,
  crashes: 0,
  blamed: 0,
  timeouts: 0,
  interruptions: 0,
  losses: 0,
  together: 0,
  outcome: null,
  error: null,
  cancel_requested: false,
  parent: null,
  wait_step: null,
  keys: null,
  door: null,
  latest_at: null,
  expires_at: null,
};

test("what only holds its place in a row is not shown: before the first claim, and before the end", () => {
  const { startedAt, deadlineAt, epoch, finishedAt } = jobInfo({ ...row, fence: 0, state: 0 });
  assert.deepEqual(
    { startedAt, deadlineAt, epoch, finishedAt },
    { startedAt: null, deadlineAt: null, epoch: 0, finishedAt: null },
  );
  assert.deepEqual(
    JOB_STATES.filter((_, state) => jobInfo({ ...row, state }).finishedAt !== null),
    ["succeeded", "dead", "cancelled", "quarantined"],
  );
  assert.equal(jobInfo(row).startedAt, 20);
});

test("a cancel that was asked for is read from a boolean and from a number", () => {
  assert.deepEqual(
    [true, 1, false, 0].map((cancel_requested) => jobInfo({ ...row, cancel_requested }).cancelRequested),
    [true, true, false, false],
  );
});

test("a damaged error is shown as it is found and hides no job", () => {
  const error = (stored: unknown): unknown => jobInfo({ ...row, error: stored as string }).error;
  assert.deepEqual(error('{"name":"E","message":"m","code":"c"}'), { name: "E", message: "m", code: "c" });
  for (const damaged of ['{"name":"E"', '"a text"', "null", '{"name":"E"}']) {
    assert.deepEqual(error(damaged), { name: "Unreadable", message: `the stored error is damaged: ${damaged}` });
  }
  assert.deepEqual(error(Buffer.from("blob")), { name: "Unreadable", message: "the stored error is damaged: blob" });
});

test("stored text that is no longer JSON is shown as text", () => {
  assert.deepEqual([null, '{"a":1}', '{"a"', Buffer.from("[2]"), 3].map(storedValue), [null, { a: 1 }, '{"a"', [2], 3]);
});

test("requeue is stored as pending, which workers of earlier versions and released SQL functions know, and both are read", () => {
  const words = ["retry", "requeue", "fail", "quarantine", "cancel", "lost", "none"];
  assert.deepEqual(words.map(toStored), ["retry", "pending", "fail", "quarantine", "cancel", "lost", "none"]);
  assert.deepEqual(words.map(toStored).map(fromStored), words);
  for (const on_crash of ["pending", "requeue"]) assert.equal(kindSettings({ on_crash } as never).onCrash, "requeue");
  for (const decision of ["pending", "requeue"]) {
    const { jobs } = wholeIncident({} as never, [{ decision, counters: "{}" } as never]);
    assert.equal(jobs[0]?.decision, "requeue");
  }
});
