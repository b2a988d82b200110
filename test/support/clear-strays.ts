// A process that clears stray locks next to a database without pause, until it is killed. Says when it has begun.
import { removeStrayLocks } from "../../src/stores/sqlite/lock.ts";

const database = process.argv[2]!;
removeStrayLocks(database, new Set());
process.send?.({ fact: "clearing" });
for (;;) removeStrayLocks(database, new Set());
