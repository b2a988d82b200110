// Tests start this in namespaces of its own. It prints its identity and what it finds of the processes named on its command line.
import { processIdentity, processState } from "../../src/platform/identity.ts";
import type { ProcessKey } from "../../src/stores/liveness.ts";

const self = processIdentity();
const others = JSON.parse(process.argv[2] ?? "[]") as Partial<ProcessKey>[];
const states = others.map((other) => processState(self, { ...self, ...other }));
process.stdout.write(`${JSON.stringify({ self, states })}\n`);
