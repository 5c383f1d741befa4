-- Prelude: what is paused on a queue. docs/internals.md, "Pauses".
--
-- Needs _job. Two fields of the control hash hold JSON: 'paused', the pause of the queue, and 'paused_tasks', the pauses
-- of tasks by name. A pause has since and till, epoch ms as text ('0': it lasts until somebody ends it); by; why; and
-- the id of the call that wrote it. What cannot be read is no pause.

-- Until when a pause lasts, epoch ms; huge: until somebody ends it; nil: it is over.
local function pause_till(pause, now_ms)
  local till = type(pause) == 'table' and tonumber(pause.till)
  if not till or not is_score(till) or till ~= 0 and till <= now_ms then return nil end
  return till == 0 and math.huge or till
end

-- The pauses of tasks that are not over, by name; and their number.
local function read_paused_tasks(text, now_ms)
  local tasks, count = {}, 0
  for name, pause in pairs(decode_table(text)) do
    if type(name) == 'string' and pause_till(pause, now_ms) then
      tasks[name], count = pause, count + 1
    end
  end
  return tasks, count
end
