// The store port on SQLite, held to its specification: in a file with a connection for every caller, and in memory with one for all.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { storeConformance } from "../../src/testing/conformance/suite.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";
import { damageIn, openStore, restoreIn, sqliteUser } from "./sqlite-stores.ts";

storeConformance("sqlite in a file", async () => {
  const folder = await mkdtemp(join(tmpdir(), "outlive-conformance-"));
  const clock = virtualClock();
  const path = join(folder, "jobs.db");
  const open = () => openStore(clock, path);
  const hands = { user: sqliteUser, damage: damageIn(path), restore: restoreIn(path) };
  return { open, clock, ...hands, cleanup: () => rm(folder, { recursive: true }) };
});

storeConformance("sqlite in memory", async () => {
  const clock = virtualClock();
  const store = await openStore(clock, ":memory:");
  return { open: async () => store, clock, user: sqliteUser, cleanup: async () => {} };
});
