// What a kept store (test/fixtures) holds, and that all of it is there and goes on after an upgrade.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import type { Engine, EngineOptions } from "../../src/index.ts";
import { kinds, ship, stepsRun } from "../fixtures/kinds.ts";
import { PATIENT, untilState } from "./processes.ts";

export const KEPT_STORES = new URL("../fixtures/", import.meta.url);

/** The kept jobs grow older than the default retention. */
export const KEPT_OPTIONS: EngineOptions = {
  jobs: kinds,
  logger: false,
  heartbeat: PATIENT,
  retention: { finished: "3650d", incidents: "3650d" },
};

/** Writes the kept SQLite file to `path`. */
export function copyKept(name: string, path: string): void {
  writeFileSync(path, gunzipSync(readFileSync(new URL(name, KEPT_STORES))), { mode: 0o600 });
}

export async function assertKept(engine: Engine): Promise<void> {
  const job = async (id: string) => (await engine.get(id))!;
  const all = await engine.list({ limit: 100 });
  assert.deepEqual(all.jobs.map(({ id }) => id).sort(), [
    "cancelled",
    "companion",
    "dead",
    "delayed",
    "quarantined",
    "queued",
    "retrying",
    "running",
    "succeeded",
    "suspect",
  ]);
  const succeeded = await job("succeeded");
  assert.equal(succeeded.state, "succeeded");
  assert.deepEqual(succeeded.result, { done: "a book" });
  assert.deepEqual(succeeded.progress, { percent: 50 });
  assert.deepEqual(
    succeeded.steps.map(({ name, result }) => [name, result]),
    [["box", { item: "a book", size: 3 }]],
  );
  assert.deepEqual(
    succeeded.log.map(({ message }) => message),
    ["a book is in its box"],
  );
  const dead = await job("dead");
  assert.deepEqual([dead.state, dead.error?.message], ["dead", "no address for a bike"]);
  assert.equal((await job("quarantined")).state, "quarantined");
  assert.equal((await job("cancelled")).state, "cancelled");
  const delayed = await job("delayed");
  assert.deepEqual([delayed.state, delayed.runAt], ["queued", Date.parse("2100-01-01")]);
  const retrying = await job("retrying");
  assert.deepEqual([retrying.state, retrying.counters.errors], ["queued", 1]);
  for (const id of ["suspect", "companion"]) {
    const suspect = await job(id);
    assert.deepEqual([suspect.state, suspect.counters.crashes, suspect.counters.blamed], ["queued", 2, 0], id);
    assert.deepEqual(
      suspect.history.map(({ event }) => event).filter((event) => event === "crash"),
      ["crash", "crash"],
    );
  }
  const queued = await job("queued");
  assert.deepEqual([queued.state, queued.priority, queued.dedupeKey], ["queued", 7, "kite"]);
  const again = await engine.enqueue(ship, { item: "another kite" }, { dedupeKey: "kite" });
  assert.deepEqual(again, { id: "queued", created: false });

  const incidents = await engine.incidents();
  assert.ok(incidents.length >= 3, "of the three deaths before the store was kept");
  const texts = await Promise.all(incidents.map(async ({ id }) => (await engine.report(id))!.text));
  for (const id of ["quarantined", "suspect", "companion"])
    assert.ok(
      texts.some((text) => text.includes(id)),
      id,
    );
}

export async function assertRuns(engine: Engine): Promise<void> {
  stepsRun.length = 0;
  const worker = await engine.start();
  for (const id of ["queued", "suspect", "companion", "running"]) await untilState(engine, id, "succeeded");
  const running = (await engine.get("running"))!;
  assert.deepEqual(running.result, { done: "a drum" });
  assert.equal(running.attempt, 2, "once by the worker that died, once by this one");
  assert.deepEqual(stepsRun, ["box of queued"], "a step that was kept is replayed, not run");
  for (const id of ["dead", "quarantined", "cancelled"]) {
    await engine.retry(id);
    await untilState(engine, id, "succeeded");
  }
  const { id } = await engine.enqueue(ship, { item: "a new one" });
  await untilState(engine, id, "succeeded");
  for (const waiting of ["delayed", "retrying"]) assert.equal((await engine.get(waiting))?.state, "queued");
  await worker.stop();
}
