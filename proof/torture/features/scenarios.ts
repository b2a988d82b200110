// The scenarios of the rig for waiting and keys, in the order in which they are played.
import { fairness } from "./fairness.ts";
import { mixed } from "./mixed.ts";
import { onePerKey } from "./one-per-key.ts";
import { openTransaction } from "./open-transaction.ts";
import { pace } from "./pace.ts";
import { schedules } from "./schedules.ts";
import { sqlReclaim } from "./sql-reclaim.ts";
import type { Scenario, StoreName } from "./stage.ts";

const SCENARIOS: readonly Scenario[] = [mixed, onePerKey, pace, fairness, openTransaction, sqlReclaim, schedules];

export interface Chosen {
  readonly chosen: readonly Scenario[];
  /** Why others are not played. */
  readonly notRun: readonly string[];
}

/** All of the store, or those whose names are given, separated by commas. */
export function scenariosNamed(names: string | undefined, store: StoreName): Chosen {
  if (names === undefined) {
    const elsewhere = SCENARIOS.filter(({ stores }) => !stores.includes(store));
    return {
      chosen: SCENARIOS.filter(({ stores }) => stores.includes(store)),
      notRun: elsewhere.map(({ name, stores }) => `${name}: only with --store ${stores.join(" or ")}`),
    };
  }
  const chosen = names.split(",").map((name) => {
    const found = SCENARIOS.find((scenario) => scenario.name === name);
    if (!found) throw new Error(`--scenario ${name}: use ${SCENARIOS.map((scenario) => scenario.name).join(", ")}.`);
    if (!found.stores.includes(store)) throw new Error(`--scenario ${name}: use --store ${found.stores.join(" or ")}.`);
    return found;
  });
  return { chosen, notRun: [] };
}
