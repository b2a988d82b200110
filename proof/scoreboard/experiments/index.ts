// Every experiment once, in the order of a run: what measures speed first, while nothing else runs.
import type { Experiment } from "../experiment.ts";
import { blockedLoop } from "./blocked-loop.ts";
import { kept } from "./kept.ts";
import { killToRerun } from "./kill-to-rerun.ts";
import { poison } from "./poison.ts";
import { sigterm } from "./sigterm.ts";
import { speed } from "./speed.ts";
import { zombie } from "./zombie.ts";

export const experiments: readonly Experiment[] = [speed, kept, zombie, killToRerun, poison, sigterm, blockedLoop];
