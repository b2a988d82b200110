// All migrations in their order; the number of one is its place, counted from 1.
import type { Migration } from "../migrate.ts";
import { core } from "./core.ts";

export const MIGRATIONS: readonly Migration[] = [core];
