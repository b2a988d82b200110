// Opens a file that a process left behind, and says how long that took and what it recovered.
import { open } from "../../../src/index.ts";
import { given, serve } from "../program.ts";
import { noop } from "./noop.ts";

const { path } = given<{ path: string }>();

export interface Opened {
  readonly openMs: number;
  /** Of it, the check of the whole file; 0: there was none. It has a limit of its own, 1 s. */
  readonly checkMs: number;
  readonly recoveryMs: number;
  readonly recovered: number;
}

serve({
  open: async (): Promise<Opened> => {
    let recoveryMs = 0;
    let checkMs = 0;
    let recovered = 0;
    const from = performance.now();
    const engine = await open(`sqlite:${path}`, {
      jobs: [noop],
      logger: false,
      onEvent: (event) => {
        if (event.name === "integrity.checked") checkMs = event.tookMs;
        if (event.name !== "recovery.completed") return;
        recoveryMs = event.durationMs;
        recovered = event.jobs - event.failed;
      },
    });
    const openMs = performance.now() - from;
    await engine.close();
    return { openMs, checkMs, recoveryMs, recovered };
  },
});
