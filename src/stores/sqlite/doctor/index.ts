// The entry point of the file doctor, and the only file of this folder that other folders import: checking, repairing
// and backing up the file of a store, its write-ahead log, and its start-up. `salvage/` is not exported here: only the
// child process (child.ts) loads it.

export {
  type BackgroundCheck,
  checkFile,
  checkInBackground,
  checkOpen,
  findInconsistencies,
  findStrayLocks,
} from "./check.ts";
export { backupFile, fileDoctor } from "./repair.ts";
export { untilNoStartUp } from "./start-lock.ts";
export { startUp } from "./start-up.ts";
export { assertNoRepair, finishSwap, isUnderRepair } from "./swap.ts";
export { checkpointAtOpen, journalRestored, tendWal, walBytes, walNews, walNotes } from "./wal.ts";
