// All migrations in their order; the number of one is its place, counted from 1. What is released is never changed: the next one is.
import type { Migration } from "../migrate.ts";
import { core } from "./core.ts";
import { losses } from "./losses.ts";
import { reclaim } from "./reclaim.ts";
import { restore } from "./restore.ts";
import { seedViews } from "./seed-views.ts";
import { textsAndLimits } from "./texts-and-limits.ts";
import { views } from "./views.ts";

export const MIGRATIONS: readonly Migration[] = [core, reclaim, views, losses, textsAndLimits, restore, seedViews];
