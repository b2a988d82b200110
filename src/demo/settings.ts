// What every run of the demo has in common: short times, so that a death is seen while you watch, and small crews.
import type { Duration } from "../index.ts";

export const HEARTBEAT: Duration = "250ms";
export const LEASE: Duration = "2s";
export const LEASE_MS = 2_000;

/** Jobs that one worker runs at once. */
export const CONCURRENCY = 8;

/** How long a dead worker's place stays empty before the parent fills it again. */
export const RESTART_MS = 150;

/** The share of `--seconds` in which workers are killed; the rest is start, drain and audit. */
export const UNDER_FIRE = 0.72;
