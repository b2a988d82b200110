// The door of the file doctor, the only file of this room that others import: checking, repairing and backing up the file of a store,
// its write-ahead log, and its start-up. `salvage/` is not behind it: only the child process (child.ts) loads that.
export { backupFile } from "./backup.ts";
export { type BackgroundCheck, checkFile, checkInBackground, checkOpen } from "./check.ts";
export { findInconsistencies, findStrayLocks } from "./inconsistencies.ts";
export { repairUnused } from "./repair.ts";
export { untilNoStartUp } from "./start-lock.ts";
export { startUp } from "./start-up.ts";
export { assertNoRepair, finishSwap, isUnderRepair } from "./swap.ts";
export { checkpointAtOpen, tendWal, walBytes } from "./wal.ts";
