{{- /* Changes to an object, in place: each takes the object and what it is to have. */}}

{{- /* The namespace of the release, for the object and for accounts that it names. */}}
{{- define "interlock.namespace" }}
{{- $object := index . 0 }}{{ $namespace := index . 1 }}
{{- if not $object.kind }}
{{- fail "a file of this chart is not there: its symbolic links must be links, or the files they lead to" }}
{{- end }}
{{- if $object.metadata.namespace }}{{ $_ := set $object.metadata "namespace" $namespace }}{{ end }}
{{- range $object.subjects }}{{ $_ := set . "namespace" $namespace }}{{ end }}
{{- end }}

{{- /* Image, and what `daemon` or `fleet` says, for the pods of a DaemonSet or Deployment. */}}
{{- define "interlock.pods" }}
{{- $template := (index . 0).spec.template }}{{ $values := index . 1 }}
{{- $image := index . 2 }}{{ $version := index . 3 }}
{{- $container := index $template.spec.containers 0 }}
{{- $tag := $image.tag | default (ternary "" $version (ne $image.digest "")) }}
{{- $name := printf "%s:%s@%s" $image.repository $tag $image.digest }}
{{- $_ := set $container "image" ($name | replace ":@" "@" | trimSuffix "@") }}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy }}
{{- include "interlock.set" (list $container "resources" $values.resources) }}
{{- include "interlock.set" (list $template.spec "nodeSelector" $values.nodeSelector) }}
{{- include "interlock.set" (list $template.spec "tolerations" $values.tolerations) }}
{{- range $image.pullSecrets }}
{{- $secrets := $template.spec.imagePullSecrets | default list }}
{{- $_ := set $template.spec "imagePullSecrets" (append $secrets (dict "name" .)) }}
{{- end }}
{{- include "interlock.add" (list $template.metadata "labels" $values.podLabels) }}
{{- include "interlock.add" (list $template.metadata "annotations" $values.podAnnotations) }}
{{- end }}

{{- /* A member in place of the one that is there, or none where it would be empty. */}}
{{- define "interlock.set" }}
{{- $object := index . 0 }}{{ $key := index . 1 }}
{{- $_ := unset $object $key }}
{{- with index . 2 }}{{ $_ := set $object $key . }}{{ end }}
{{- end }}

{{- /* More labels or annotations for metadata. */}}
{{- define "interlock.add" }}
{{- $metadata := index . 0 }}{{ $key := index . 1 }}
{{- with index . 2 }}{{ $_ := set $metadata $key (merge (dict) . (index $metadata $key | default dict)) }}{{ end }}
{{- end }}
