// A repair in a separate process, as `outlive check --repair` does it, that stands still after its first step until it is killed
// or gets a byte on its standard input.
import { readSync, writeSync } from "node:fs";
import { repairStore } from "../../src/engine/open.ts";

const repair = await repairStore(process.argv[2]!, {
  salvage: true,
  onStep({ step }) {
    writeSync(1, `${step}\n`);
    readSync(0, Buffer.alloc(1));
  },
});
writeSync(1, `sound ${repair.sound}\n`);
