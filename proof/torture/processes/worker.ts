// One worker process of the rig, on connections that the engine makes itself.
import { storeOptions } from "./settings.ts";
import { workUnderParent } from "./work-under-parent.ts";

const [url, only] = process.argv.slice(2);
workUnderParent(url!, storeOptions(), only);
