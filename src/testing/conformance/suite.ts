// The executable specification of the store port (core/store.ts): all subjects, registered for one store.
import { describe } from "node:test";
import { specifyAttemptWrites } from "./attempt-writes.ts";
import { specifyClaim } from "./claim.ts";
import { specifyCommit } from "./commit.ts";
import { specifyCorrupt } from "./corrupt.ts";
import { specifyEnqueue } from "./enqueue.ts";
import { specifyExpire } from "./expire.ts";
import { specifyInspect } from "./inspect.ts";
import { specifyIsolation } from "./isolation.ts";
import { specifyLiveness } from "./liveness.ts";
import { specifyLosses } from "./losses.ts";
import { specifyOperate } from "./operate.ts";
import { specifyPurge } from "./purge.ts";
import { specifyRecover } from "./recover.ts";
import { specifyRestore } from "./restore.ts";
import { specifier, type Specify } from "./scene.ts";
import { specifySettle } from "./settle.ts";
import type { MakeStores } from "./stores.ts";
import { specifyVerdicts } from "./verdicts.ts";
import { specifyWorkers } from "./workers.ts";

const SUBJECTS: Readonly<Record<string, (specify: Specify) => void>> = {
  enqueue: specifyEnqueue,
  claim: specifyClaim,
  settle: specifySettle,
  "attempt writes": specifyAttemptWrites,
  commit: specifyCommit,
  corrupt: specifyCorrupt,
  recover: specifyRecover,
  verdicts: specifyVerdicts,
  losses: specifyLosses,
  isolation: specifyIsolation,
  expire: specifyExpire,
  workers: specifyWorkers,
  restore: specifyRestore,
  liveness: specifyLiveness,
  operate: specifyOperate,
  inspect: specifyInspect,
  purge: specifyPurge,
};

/** Registers the tests of the store port with node:test. `makeStores` is called for every test and makes a fresh database. */
export function storeConformance(name: string, makeStores: MakeStores): void {
  const specify = specifier(makeStores);
  for (const [subject, tests] of Object.entries(SUBJECTS)) describe(`${name}: ${subject}`, () => tests(specify));
}
