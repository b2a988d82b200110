// Holds the bus that tells everything the engine does.
import assert from "node:assert/strict";
import { test } from "node:test";
import { toStoredError } from "../../src/job/errors.ts";
import { type EngineEvent, EventBus } from "../../src/job/events.ts";

const started = { recovery: "r1", by: "open", workers: 0 };
const succeeded = { jobId: "j1", kind: "mail", attempt: 1, durationMs: 5 };
const bus = (): EventBus => new EventBus(toStoredError);

test("a listener hears its event and no other, at once, until it stops hearing", () => {
  const heard: unknown[] = [];
  const events = bus();
  const stop = events.on("recovery.started", (event) => void heard.push(event));
  events.emit("recovery.started", started);
  events.emit("job.succeeded", succeeded);
  assert.deepEqual(heard, [started]);
  stop();
  stop();
  events.emit("recovery.started", started);
  assert.equal(heard.length, 1);
});

test("listeners hear in the order in which they came", () => {
  const heard: number[] = [];
  const events = bus();
  for (const n of [1, 2, 3]) events.on("recovery.started", () => void heard.push(n));
  events.emit("recovery.started", started);
  assert.deepEqual(heard, [1, 2, 3]);
});

test("a listener that throws harms neither the others nor the engine, and is reported", () => {
  const heard: unknown[] = [];
  const events = bus();
  events.on("listener.failed", ({ event, error }) => void heard.push(`${event}: ${error.message}`));
  events.on("recovery.started", () => {
    throw new Error("first");
  });
  events.on("recovery.started", () => {
    throw "a text";
  });
  events.on("recovery.started", (event) => void heard.push(event));
  events.emit("recovery.started", started);
  assert.deepEqual(heard, ["recovery.started: first", "recovery.started: a text", started]);
});

test("a listener of failures that itself fails does not call itself endlessly", () => {
  const events = bus();
  let calls = 0;
  const fail = (): never => {
    calls++;
    throw new Error("again");
  };
  events.on("listener.failed", fail);
  events.onAny(fail);
  events.emit("recovery.started", started);
  assert.equal(calls, 3);
});

test("an asynchronous listener that rejects harms nothing either, and is reported", async () => {
  const heard: string[] = [];
  const events = bus();
  events.on("listener.failed", ({ event, error }) => void heard.push(`${event}: ${error.message}`));
  const reject = async (): Promise<void> => {
    throw new Error("later");
  };
  // oxlint-disable-next-line typescript/no-misused-promises -- what users do
  events.on("recovery.started", reject);
  // oxlint-disable-next-line typescript/no-misused-promises -- what users do
  events.onAny(async (event) => {
    if (event.name === "recovery.started") await reject();
  });
  events.emit("recovery.started", started);
  await new Promise<void>((resolve) => setImmediate(resolve));
  assert.deepEqual(heard, ["recovery.started: later", "recovery.started: later"]);
});

test("who hears everything gets each event with its name, but not job.succeeded", () => {
  const heard: EngineEvent[] = [];
  const events = bus();
  const stop = events.onAny((event) => void heard.push(event));
  events.emit("recovery.started", started);
  events.emit("job.succeeded", succeeded);
  events.emit("job.dead", { jobId: "j1", kind: "mail", reason: "why" });
  assert.deepEqual(heard, [
    { name: "recovery.started", ...started },
    { name: "job.dead", jobId: "j1", kind: "mail", reason: "why" },
  ]);
  stop();
  events.emit("recovery.started", started);
  assert.equal(heard.length, 2);
});

test("events of every single job go only to listeners that ask for them by name", () => {
  const heard: string[] = [];
  const events = bus();
  events.onAny(({ name }) => void heard.push(name));
  const claimed = { jobId: "j1", kind: "mail", attempt: 1 };
  const ended = { ...claimed, outcome: "failed" as const, to: "queued" as const, durationMs: 5 };
  const emitAll = (): void => {
    events.emit("job.claimed", claimed);
    events.emit("attempt.ended", ended);
    events.emit("job.succeeded", succeeded);
  };
  emitAll();
  assert.equal(heard.length, 0);
  for (const name of ["job.claimed", "attempt.ended", "job.succeeded"] as const) {
    assert.equal(events.has(name), false);
    events.on(name, () => void heard.push(`asked ${name}`));
    assert.equal(events.has(name), true);
  }
  emitAll();
  assert.deepEqual(heard, ["asked job.claimed", "asked attempt.ended", "asked job.succeeded"]);
});

test("job.succeeded reaches who asked for it by name", () => {
  const heard: unknown[] = [];
  const events = bus();
  events.on("job.succeeded", (event) => void heard.push(event));
  events.emit("job.succeeded", succeeded);
  assert.deepEqual(heard, [succeeded]);
});

test("has() tells whether anybody would hear", () => {
  const events = bus();
  assert.equal(events.has("job.succeeded"), false);
  assert.equal(events.has("job.dead"), false);
  const stopAny = events.onAny(() => {});
  assert.equal(events.has("job.succeeded"), false);
  assert.equal(events.has("job.dead"), true);
  stopAny();
  assert.equal(events.has("job.dead"), false);
  const stop = events.on("job.succeeded", () => {});
  assert.equal(events.has("job.succeeded"), true);
  assert.equal(events.has("job.dead"), false);
  stop();
  assert.equal(events.has("job.succeeded"), false);
});
