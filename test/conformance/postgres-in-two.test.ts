// The store port on PostgreSQL with every turn in two statements at the same time, as a busy worker takes it, or in three if the turn before handed over slots.
import { storeConformance } from "../../src/testing/conformance/suite.ts";
import { postgresStores } from "./postgres-stores.ts";

storeConformance("postgres, turns in two", (t) => postgresStores(t, { turnInTwoFrom: 1, halvesFrom: 2 }));
