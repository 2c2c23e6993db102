// What the scripts for Node.js share: each names its checks, runs them all, and says which failed.
export const URL_ = process.env.HEADGATE_URL ?? "http://127.0.0.1:8000";
export const MODEL = process.env.HEADGATE_MODEL ?? "default";
export const SMALL = process.env.HEADGATE_SMALL === "1";
const checks = [];

export function assert(fact, why = "it is not so") {
  if (!fact) throw new Error(why);
}

export function check(name, run) {
  checks.push([name, run]);
}

export function clever(name, run) {
  if (!SMALL) check(name, run);
}

export async function main() {
  let failed = 0;
  for (const [name, run] of checks) {
    const began = performance.now();
    try {
      await run();
      console.log(`ok ${name} (${((performance.now() - began) / 1000).toFixed(2)} s)`);
    } catch (error) {
      failed += 1;
      console.error(error);
      console.log(`FAILED ${name}: ${String(error).split("\n")[0].slice(0, 300)}`);
    }
  }
  process.exit(failed ? 1 : 0);
}
