// The store port on Redis, held to its specification. It has neither `commit` nor `transact`: their tests, and only those, are skipped.
import { storeConformance } from "../../src/testing/index.ts";
import { redisStores } from "./redis-stores.ts";

storeConformance("redis", redisStores);
