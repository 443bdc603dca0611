{{/* What all pods of the chart share: {root, pods: operator's or router's values, selector: labels}. */}}

{{- define "promptprefix.podMetadata" -}}
labels:
  {{- include "promptprefix.labels" (merge (dict "more" .pods.podLabels) .) | nindent 2 }}
{{- with .pods.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "promptprefix.podSpec" -}}
# Variables of Services such as promptprefix-webhook would be read as settings.
enableServiceLinks: false
dnsPolicy: {{ .pods.dnsPolicy }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pods.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pods.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pods.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pods.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .pods.topologySpreadConstraints }}
topologySpreadConstraints:
{{- $own := dict "labelSelector" (dict "matchLabels" (include "promptprefix.selectorLabels" . | fromYaml)) }}
{{- range .pods.topologySpreadConstraints }}
- {{- toYaml (merge (deepCopy .) (hasKey . "labelSelector" | ternary dict $own)) | nindent 2 }}
{{- end }}
{{- end }}
{{- if .pods.priorityClassName }}
priorityClassName: {{ .pods.priorityClassName }}
{{- else if .root.Values.priorityClass.create }}
priorityClassName: {{ include "promptprefix.priorityClass" .root }}
{{- end }}
{{- end }}

{{- define "promptprefix.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .namespace | default .root.Release.Namespace | quote }}
  labels:
    {{- include "promptprefix.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .pods.podDisruptionBudget.maxUnavailable }}
  # A pod that is broken anyway must not hold up a drain.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "promptprefix.selectorLabels" . | nindent 6 }}
{{- end }}

{{/*
A container's variables: {own: the chart's, as YAML, extra: the user's, path: where those stand, refused: names
with reasons}. Settings are read without regard to case.
*/}}
{{- define "promptprefix.env" -}}
{{- .own }}
{{- $names := list }}
{{- range .own | fromYamlArray }}
{{- $names = append $names .name }}
{{- end }}
{{- $refused := .refused | default dict }}
{{- range .extra }}
{{- with get $refused (upper .name) }}
{{- fail (printf "%s: %s" $.path .) }}
{{- end }}
{{- if or (has .name $names) (and (hasPrefix "PROMPTPREFIX_" (upper .name)) (has (upper .name) $names)) }}
{{- fail (printf "%s: %s stands twice, or the chart sets it by a value of its own" $.path .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end }}
