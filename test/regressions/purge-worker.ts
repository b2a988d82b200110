// A worker process with retention of its own. Arguments: the store's address, then a JSON of the engine's options.
import { type EngineOptions, open } from "../../src/index.ts";
import { tell } from "../support/jobs.ts";
import { nap } from "./commit-jobs.ts";

const [url, given] = process.argv.slice(2);
const options = JSON.parse(given!) as EngineOptions;
const engine = await open(url!, {
  jobs: [nap],
  logger: false,
  onEvent: (event) => tell("event", { event }),
  ...options,
});
tell("working", { worker: (await engine.start()).id });
