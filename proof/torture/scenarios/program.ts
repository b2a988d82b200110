// One recorded process: plays one act in the given folder, and ends.
// Arguments: the folder, the act, the durability.
import { join } from "node:path";
import { ACTS, type ActName } from "./acts.ts";
import { DATABASE } from "./scenario.ts";
import { type Durability, Stage } from "./stage.ts";
import { sayInto } from "./word.ts";

const [folder, act, durability] = process.argv.slice(2) as [string, ActName, Durability];
await ACTS[act](new Stage(join(folder, DATABASE), durability, sayInto(folder)));
