// The executable specification of the store port: all subjects, registered for one store.
import { describe } from "node:test";
import { specifyAlone } from "./alone.ts";
import { specifyAttemptWrites } from "./attempt-writes.ts";
import { specifyClaim } from "./claim.ts";
import { specifyEnqueue } from "./enqueue.ts";
import { specifyRecover } from "./recover.ts";
import { specifySettle } from "./settle.ts";
import { specifier } from "./scene.ts";
import type { MakeStores } from "./stores.ts";

/** Registers the tests of the store port with node:test. `makeStores` is called for every test and makes a fresh database. */
export function storeConformance(name: string, makeStores: MakeStores): void {
  const specify = specifier(makeStores);
  describe(`${name}: enqueue`, () => specifyEnqueue(specify));
  describe(`${name}: claim`, () => specifyClaim(specify));
  describe(`${name}: settle`, () => specifySettle(specify));
  describe(`${name}: attempt writes`, () => specifyAttemptWrites(specify));
  describe(`${name}: recover`, () => specifyRecover(specify));
  describe(`${name}: alone`, () => specifyAlone(specify));
}
