// One worker process of the rig, on connections that the engine makes itself.
import { storeOptions } from "./settings.ts";
import { workUnderParent } from "./work-under-parent.ts";

workUnderParent(process.argv[2]!, storeOptions());
