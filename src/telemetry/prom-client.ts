// The one file that loads `prom-client`, an optional peer, and only when metrics are wanted.
import type * as PromClient from "prom-client";
import { createRequire } from "node:module";
import { ErrorCode, OutliveError } from "../job/errors.ts";

const NAME = "prom-client";
const load = createRequire(import.meta.url);

/** Synchronous, because `attachMetrics` is. It is the instance that the program's own `import "prom-client"` gets. */
export function promClient(): typeof PromClient {
  try {
    return load(NAME) as typeof PromClient;
  } catch (thrown) {
    if (!isMissing(thrown)) throw thrown;
    throw new OutliveError(
      ErrorCode.driverMissing,
      `Metrics need the package \`${NAME}\`, which is not installed.`,
      `Run \`npm install ${NAME}\` in this program.`,
      {},
      { cause: thrown },
    );
  }
}

/** The package itself, and not something that it requires. */
function isMissing(thrown: unknown): boolean {
  const { code, message } = thrown as NodeJS.ErrnoException;
  return code === "MODULE_NOT_FOUND" && message.includes(`'${NAME}'`);
}
