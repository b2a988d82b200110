// The executable specification of the store port: all subjects, registered for one store.
import { describe } from "node:test";
import { specifyClaim } from "./claim.ts";
import { specifyEnqueue } from "./enqueue.ts";
import { specifySettle } from "./settle.ts";
import { specifier } from "./scene.ts";
import type { MakeStores } from "./stores.ts";

/** Registers the tests of the store port with node:test. `makeStores` is called for every test and makes a fresh database. */
export function storeConformance(name: string, makeStores: MakeStores): void {
  const specify = specifier(makeStores);
  describe(`${name}: enqueue`, () => specifyEnqueue(specify));
  describe(`${name}: claim`, () => specifyClaim(specify));
  describe(`${name}: settle`, () => specifySettle(specify));
}
