// What Node gives a host for one session: a forked process that talks through process.send.
'use strict';

const FILLER = 'x'.repeat(54);
const BURST = 1000;

// Sends `count` texts of 64 bytes, each with its number, as fast as the channel takes them.
function flood(count) {
  let next = 0;
  (function burst() {
    const end = Math.min(next + BURST, count);
    while (next < end) {
      const text = { type: 'text', text: String(next).padStart(10, '0') + FILLER };
      next += 1;
      if (next === end && next < count) process.send(text, burst);
      else process.send(text);
    }
  })();
}

process.on('message', (message) => {
  if (message === 'ping') process.send('pong');
  else flood(message);
});
process.on('disconnect', () => process.exit(0));

// "Ready" is what it is for a session: the agent's program is running.
process.send('ready');
