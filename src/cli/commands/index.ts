// The list of commands, in the order in which the help shows them.
import type { Register } from "../main.ts";
import { register as check } from "./check.ts";
import { register as completion } from "./completion.ts";
import { register as init } from "./init.ts";
import { register as metrics } from "./metrics.ts";
import { register as why } from "./why.ts";
import { register as work } from "./work.ts";

export const COMMANDS: readonly Register[] = [init, work, check, why, metrics, completion];
