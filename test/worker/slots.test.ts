// Holds how many jobs a worker may take, in all and of each kind.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Slots } from "../../src/worker/executor.ts";

const KINDS = ["mail", "report", "sync"];
const kinds = (...rooms: [string, number][]) => rooms.map(([kind, room]) => ({ kind, room }));

test("without limits per kind every kind may fill all that is left", () => {
  const slots = new Slots({ total: 10, perKind: new Map() }, KINDS);
  assert.deepEqual(slots.room(0), {
    total: 10,
    kinds: kinds(["mail", 10], ["report", 10], ["sync", 10]),
  });
  slots.took("mail");
  assert.deepEqual(slots.room(7), { total: 3, kinds: kinds(["mail", 3], ["report", 3], ["sync", 3]) });
});

test("a full worker has room for no kind", () => {
  const slots = new Slots({ total: 2, perKind: new Map() }, KINDS);
  assert.deepEqual(slots.room(2), { total: 0, kinds: [] });
});

test("a worker with more in flight than it may has no room, and not less than none", () => {
  assert.deepEqual(new Slots({ total: 2, perKind: new Map() }, KINDS).room(5), { total: 0, kinds: [] });
});

test("a kind's own limit counts what runs of it, and a kind without one is limited by the total only", () => {
  const slots = new Slots(
    {
      total: 6,
      perKind: new Map([
        ["mail", 2],
        ["report", 1],
      ]),
    },
    KINDS,
  );
  assert.deepEqual(slots.room(0).kinds, kinds(["mail", 2], ["report", 1], ["sync", 6]));
  slots.took("mail");
  slots.took("report");
  assert.deepEqual(slots.room(2), { total: 4, kinds: kinds(["mail", 1], ["sync", 4]) });
  slots.freed("report");
  assert.deepEqual(slots.room(1).kinds, kinds(["mail", 1], ["report", 1], ["sync", 5]));
});

test("kinds without a limit of their own share one, and say so", () => {
  const slots = new Slots({ total: 12, perKind: new Map([["mail", 2]]), others: 10 }, KINDS);
  slots.took("report");
  slots.took("report");
  slots.took("sync");
  const shares = { room: 7, shares: true };
  assert.deepEqual(slots.room(3).kinds, [
    { kind: "mail", room: 2 },
    { kind: "report", ...shares },
    { kind: "sync", ...shares },
  ]);
});

test("a kind's limit never promises more than the total has left", () => {
  const slots = new Slots({ total: 4, perKind: new Map([["mail", 3]]) }, KINDS);
  assert.deepEqual(slots.room(3).kinds, kinds(["mail", 1], ["report", 1], ["sync", 1]));
});

test("what is settled in the same transaction as the claim leaves its kind's room to it", () => {
  const slots = new Slots({ total: 6, perKind: new Map([["mail", 2]]) }, KINDS);
  slots.took("mail");
  slots.took("mail");
  slots.took("sync");
  assert.deepEqual(slots.room(3).kinds, kinds(["report", 3], ["sync", 3]));
  const ending = [{ lease: { kind: "mail" } }, { lease: { kind: "sync" } }];
  assert.deepEqual(slots.room(1, ending).kinds, kinds(["mail", 1], ["report", 5], ["sync", 5]));
  assert.deepEqual(slots.room(3).kinds, kinds(["report", 3], ["sync", 3]));
});

test("what was taken and freed again leaves the room as it was", () => {
  const slots = new Slots({ total: 4, perKind: new Map([["mail", 3]]) }, KINDS);
  const before = slots.room(0);
  for (let i = 0; i < 100; i++) slots.took("mail");
  for (let i = 0; i < 100; i++) slots.freed("mail");
  assert.deepEqual(slots.room(0), before);
});

test("a worker that takes nothing asks for nothing and is not idle", () => {
  assert.deepEqual(Slots.NONE, { total: 0, kinds: [] });
});
