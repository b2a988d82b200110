// What an engine shows to programs, and what it keeps behind `engine.operator`: two lists that were typed by hand.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Client } from "../../src/engine/client.ts";
import { Engine } from "../../src/engine/engine.ts";
import { Operator } from "../../src/engine/operator.ts";
import { memory } from "./engines.ts";

const CLIENT = [
  "abandonCollection",
  "abortBatch",
  "announce",
  "audit",
  "batch",
  "batchRows",
  "batches",
  "bulk",
  "cancel",
  "cancelCollection",
  "close",
  "collect",
  "collection",
  "collectionCounts",
  "collections",
  "counts",
  "dropParked",
  "enqueue",
  "enqueueMany",
  "follow",
  "get",
  "incidents",
  "ingest",
  "list",
  "openBatch",
  "parked",
  "pause",
  "promote",
  "put",
  "remove",
  "report",
  "result",
  "resume",
  "retry",
  "retryBatch",
  "retryParked",
  "schedules",
  "signal",
  "submit",
  "transaction",
  "wait",
  "workers",
];
const ENGINE = ["health", "limits", "on", "operator", "runUntilIdle", "start", "watchFolder", "why", "work"];
const OPERATOR = [
  "advice",
  "backup",
  "blocker",
  "deaths",
  "enqueueByName",
  "inconsistencies",
  "integrity",
  "noteDeath",
  "recover",
  "recoverAtOpen",
  "repair",
  "retryWith",
  "startShare",
  "storeHealth",
  "writer",
];
/** Protected: subclasses use them, and TypeScript hides them from programs. */
const PROTECTED = [
  "assertKnown",
  "batchKinds",
  "changes",
  "collectionClient",
  "collectionKinds",
  "contracts",
  "declaredSchedules",
  "draft",
  "ingestAs",
  "newId",
  "store",
];

/** The names of a value and of its prototypes, up to `Object`. */
function namesOf(value: object): string[] {
  const names = new Set<string>();
  for (let at = value; at !== Object.prototype; at = Object.getPrototypeOf(at) as object)
    for (const name of Object.getOwnPropertyNames(at)) names.add(name);
  names.delete("constructor");
  return [...names].filter((name) => !PROTECTED.includes(name)).toSorted();
}

test("an engine has these names, and no others", async (t) => {
  assert.deepEqual(namesOf(await memory(t, [])), [...CLIENT, ...ENGINE].toSorted());
});

test("a client has these names, and no others", () => {
  assert.deepEqual(namesOf(Client.prototype), CLIENT);
  assert.ok(Engine.prototype instanceof Client);
});

test("an operator has these names, and no others", async (t) => {
  const { operator } = await memory(t, []);
  assert.ok(operator instanceof Operator);
  assert.deepEqual(namesOf(operator), OPERATOR);
});
