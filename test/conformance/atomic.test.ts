// The store port on a server without rollback, whose latest scripts can be lost, held to its specification. It has neither `commit` nor
// `transact`: their tests, and only those, are skipped.
import { storeConformance } from "../../src/testing/conformance/suite.ts";
import { atomicStores } from "./atomic-stores.ts";

storeConformance("atomic", atomicStores);
