// What must be undone whatever happens: processes, files, the terminal. Runs once, synchronously, the latest first, at the end of
// the process and at Ctrl-C alike.

const steps: (() => void)[] = [];

export function atEnd(step: () => void): void {
  steps.push(step);
}

const SIGNALS = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 } as const;

let isInstalled = false;

/** Call it before anything is started; a second call changes nothing. */
export function cleanUpInEveryCase(): void {
  if (isInstalled) return;
  isInstalled = true;
  process.on("exit", cleanUp);
  for (const [signal, code] of Object.entries(SIGNALS))
    process.on(signal, () => {
      if (process.stderr.isTTY) process.stderr.write("\n");
      process.exit(code);
    });
}

function cleanUp(): void {
  for (let step = steps.pop(); step; step = steps.pop()) step();
}
