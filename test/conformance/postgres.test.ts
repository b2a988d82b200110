// The store port on PostgreSQL, held to its specification, with sessions of its own for every caller.
import { storeConformance } from "../../src/testing/conformance/suite.ts";
import { postgresStores } from "./postgres-stores.ts";

storeConformance("postgres", postgresStores);
