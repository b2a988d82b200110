// What the processes of the rig for batches have in common.
import type { EngineOptions } from "../../../src/index.ts";

/** Short, so that the deaths of a few minutes are found in them; a process that a busy machine keeps waiting is not taken for silent. */
export const HEARTBEAT = {
  interval: "250ms",
  lease: "5s",
  probe: "50ms",
  sweep: "500ms",
} as const satisfies EngineOptions["heartbeat"];

/** A submitter waits while so many of its batches have not ended. */
export const MAX_LEFT = 4;
/** The same in a campaign of many small batches. */
export const MAX_LEFT_OF_MANY = 100;
/** So many batches a submitter has under way in a campaign: one of seven waits for its end, and would keep the others waiting. */
export const LANES_OF_MANY = 12;
export const COUNTED_MS_OF_MANY = 100;
/** The file in the rig's folder that says: begin no further batch. */
export const ENOUGH = "enough";
